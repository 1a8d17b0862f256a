// A reverse proxy as many programs have one: a few lines on Node's own server and client, with their defaults.
const http = require('http');
const [port, upstream] = process.argv.slice(2).map(Number);
const server = http.createServer((request, response) => {
  const { method, url, headers } = request;
  const onward = http.request({ host: '127.0.0.1', port: upstream, method, path: url, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on('error', () => response.headersSent ? response.destroy() : response.writeHead(502).end('Bad gateway'));
  request.pipe(onward);
});
server.listen(port, '127.0.0.1');
