// --pull-interval, and the signal that changes it while the program runs.

/**
 * SIGUSR2 makes the endpoint ask for held pulls, and the next one for the interval again. A program that goes to the
 * background and comes back does the same: rare pulls are cheap, and held ones are fast.
 */
export function switchOnSignal(runtime, pullInterval) {
  if (!pullInterval) return;
  let rare = true;
  process.on('SIGUSR2', () => {
    rare = !rare;
    runtime.askPullInterval(rare ? pullInterval : 0);
  });
}
