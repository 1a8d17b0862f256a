vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "@{upstream}"; }
# Every connection is piped, as the manual shows it for websockets.
sub vcl_recv { return (pipe); }
sub vcl_pipe {
    if (req.http.upgrade) {
        set bereq.http.upgrade = req.http.upgrade;
        set bereq.http.connection = req.http.connection;
    }
}
