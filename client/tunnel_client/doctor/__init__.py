"""`tunnel doctor`: examines the path between this machine and a relay, step by step.

A step asks the path something, through `Trials`, and adds findings to the `Report`. Later steps use what earlier ones
have found. docs/DOCTOR.md describes each step to its readers.

Where to start
--------------

`examination.py`, which has the order of the steps, then `surroundings.py`, the shortest step.

    the examination
      examination.py      the order of the steps; next_step.py draws the conclusion, and names the command to run next
      findings.py         the report: findings, their verdicts, the exit code
      trials.py           the questions that steps may ask; pace.py says how many may begin in a time
    the steps, in their order
      surroundings.py     the proxy settings of this machine
      relay_steps.py      whether a relay answers, and accepts this user
      certificate_steps.py   who issued the certificate
      hop_steps.py        which hops stand on the path, and how many relays at its end
      connection_steps.py connections: whether they are used again, how many at once, how long they may wait
      carrier_steps.py    which carriers work, how reliably and how fast
      road_steps.py       which road is used, and why
      size_steps.py       the largest bodies that pass
      path_steps.py       what the path buffers, caches, alters, loses and carries
      long_steps.py       what shows only after a while (`--long`)
      target_step.py      a target, through the tunnel
      limiter_steps.py    after each of them: hops that refuse requests because of their number
    what steps share
      answers.py, products.py   explain answers that are not the relay's, and name the products that sent them
"""

__all__: list[str] = []
