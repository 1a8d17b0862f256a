"""Section "Long connections": one connection to each address, which all callers share.

The table's entry wraps a channel that may still be connecting, so that callers that come meanwhile share it, too. The
opaque field of a header matches each answer to its request, whatever the order of the answers. Connecting may take
three seconds.

Prints:
    answers: 0, 1, 4, 9, 16
    the slowest question was asked first: True
    connections opened: 1
"""

import asyncio

from tunnel.messages import ChannelTable, Request, Response, serve_calls


async def main() -> None:
    answered: list[int] = []
    others = asyncio.Event()

    async def square(request: Request) -> Response:
        number = int(request.body)
        if number == 0:
            await others.wait()  # the answer to the first request comes last
        answered.append(number)
        if len(answered) == 4:
            others.set()
        return Response(b"%d" % (number * number))

    handling: list[asyncio.Future[None]] = []
    serve = serve_calls({1: square})
    server = await asyncio.start_server(lambda *s: handling.append(asyncio.ensure_future(serve(*s))), "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    async with ChannelTable() as table:
        answers = await asyncio.gather(*(table.call(address, 1, b"%d" % number) for number in range(5)))
    await asyncio.gather(*handling)
    server.close()
    print("answers:", ", ".join(answer.data.decode() for answer in answers))
    print("the slowest question was asked first:", answered[-1] == 0)
    print("connections opened:", len(handling))


if __name__ == "__main__":
    asyncio.run(main())
