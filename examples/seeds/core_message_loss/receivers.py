"""Sections "Receivers" and "Results Explanation": collect message ids, sort them, and report the gaps.

The receivers share the messages, so only the ids of all receivers together can show a gap. In the document's sample,
the received id 25,296 and the expected id 25,269 differ by 27, but the sample prints a gap of 17.

Prints:
    Total Received Messages: 7
    Received Gap Message: 9
    Expected Gap Message: 6
    Gap: 3
    Gap Bytes (Approximate): 36,864
"""

MESSAGE_BYTES = 12_288


def main() -> None:
    receivers = [[1, 4, 9], [2, 10], [3, 5]]  # 6, 7 and 8 were on the way when the path died
    ids = sorted(number for received in receivers for number in received)
    print("Total Received Messages:", len(ids))
    expected = 1
    for received in ids:
        if received > expected:
            print("Received Gap Message:", received)
            print("Expected Gap Message:", expected)
            print("Gap:", received - expected)
            print(f"Gap Bytes (Approximate): {(received - expected) * MESSAGE_BYTES:,}")
        expected = received + 1


if __name__ == "__main__":
    main()
