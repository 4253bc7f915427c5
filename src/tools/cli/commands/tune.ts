/** `shoal tune`: measures which algorithm is fastest on the world it runs on, and writes it down for groups to use. */
import { Command, Option } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import { modelNames } from '../../../scheduler/model-traces.ts';
import { numberOf, positive, size, sizeOption, valueOf } from '../option-values.ts';
import type { SchedulePredictionFlags } from '../tune/run-schedule-prediction.ts';
import type { SchedulerTuneFlags } from '../tune/run-scheduler-tune.ts';
import type { TuneFlags } from '../tune/run-tune.ts';

const examples = `
Examples:
  shoal tune -n 2                                            two ranks that share this machine's memory
  shoal tune -n 4 --hosts 4 -o net.json                      four that talk over the network of this machine
  shoal tune --scheduler -n 2 --hosts 2 --model vgg16        credit and partition of scheduled all-reduces
  shoal tune --scheduler --predict runs/trace                is scheduling worth it? by the layers and the network of a run
  shoal tune --scheduler --predict --model vgg16 -n 16 --gbit 25
  mpirun -n 4 --host a,b,c,d shoal tune -o /shared/net.json  as the ranks of a job that is there already

Then: SHOAL_TUNING_FILE=net.json on all ranks. The file holds worlds of several shapes: tuning adds to what it says already.`;

const factorOf = valueOf('a number above 0, of at most 1', (text) => (Number(text) > 0 && Number(text) <= 1 ? Number(text) : undefined));
const rate = valueOf('a number above 0', (text) => (Number(text) > 0 && Number(text) < 1e6 ? Number(text) : undefined));
const factor = numberOf('a whole number of at least 2', /^([2-9]|[1-9]\d{1,3})$/);
const sizeOfData = valueOf('at least one byte', (text) => size(text) || undefined);

export function tuneCommand(setExitCode: (code: number) => void): Command {
  return new Command('tune')
    .summary('measure which algorithm is fastest, and write it to a file')
    .description('Runs every algorithm that can serve, in turn, over a range of sizes, and writes the fastest of each size to a file.')
    .option('-n, --ranks <count>', 'processes to start on this machine; default 2', positive)
    .option('--hosts <count>', 'hosts that those processes play: between them they use the network', positive, 1)
    .option('--collectives <names>', 'with commas', 'all-reduce,all-gather,reduce-scatter,broadcast')
    .addOption(sizeOption('-b, --minbytes <size>', 'smallest size', 8, sizeOfData))
    .addOption(sizeOption('-e, --maxbytes <size>', 'largest size', 16 * 2 ** 20, sizeOfData))
    .option('-f, --stepfactor <factor>', 'from one size to the next', factor, 8)
    .option('--budget <ms>', 'time per size and collective, about', positive, 500)
    .option('-o, --output <file>', 'where to write; what it says of other worlds is kept', 'shoal-tuning.json')
    .option('--scheduler', 'tune credit and partition of scheduled groups instead, by a training that only waits and communicates')
    .addOption(new Option('--model <name>', 'with --scheduler: whose layers it has').choices(modelNames).default('vgg16'))
    .option('--scale <factor>', "with --scheduler: of the model's bytes and times; default 0.02, with --predict 1", factorOf)
    .option('--steps-per-point <count>', 'with --scheduler: steps that a point is measured for', positive, 20)
    .option(
      '--predict [folder]',
      'with --scheduler: what it can gain, on virtual time, for the training that left its traces there, or --model',
    )
    .option('--gbit <rate>', 'with --predict: of a port, each way; default: as traced, or 10', rate)
    .option('--overhead <us>', 'with --predict: of each message, microseconds', rate, 50)
    .addOption(new Option('--exchange <kind>', 'with --predict').choices(['all-reduce', 'parameter-server']).default('all-reduce'))
    .option('--json', 'what was measured and chosen as JSON on standard output; the table goes to standard error')
    .addHelpText('after', examples)
    .action(async (flags: TuneFlags & SchedulerTuneFlags & SchedulePredictionFlags & { readonly scheduler?: true }) => {
      if (flags.predict !== undefined) {
        if (flags.scheduler !== true) throw new ShoalError('usage', '--predict needs --scheduler: shoal tune --scheduler --predict');
        const { runSchedulePrediction } = await import('../tune/run-schedule-prediction.ts');
        process.stdout.write(runSchedulePrediction(flags));
        setExitCode(0);
        return;
      }
      if (flags.scheduler === true) {
        const { runSchedulerTune } = await import('../tune/run-scheduler-tune.ts');
        setExitCode(await runSchedulerTune(flags, { environment: process.env, stdout: process.stdout }));
        return;
      }
      const { runTune } = await import('../tune/run-tune.ts');
      setExitCode(await runTune(flags, { environment: process.env, stdout: process.stdout }));
    });
}
