vcl 4.1;
# Four connections to the relay, and 3 s for each wait for it.
backend default {
    .host = "127.0.0.1";
    .port = "@{upstream}";
    .max_connections = 4;
    .connect_timeout = 3s;
    .first_byte_timeout = 3s;
    .between_bytes_timeout = 3s;
}
