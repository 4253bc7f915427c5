import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isShoalError, type ShoalError } from '../errors.ts';
import { formatBytes, parseBytes, parseMilliseconds } from './quantity.ts';
import { formatSetting, type SettingDefinition } from './setting.ts';
import { defaultSettings, describeSettings, readSettings, resolveSettings, settingDefinitions, settingKeys } from './settings.ts';

const definitions: readonly SettingDefinition[] = settingKeys.map((key) => settingDefinitions[key]);

function errorOf(run: () => unknown): ShoalError {
  try {
    run();
  } catch (thrown) {
    if (isShoalError(thrown)) return thrown;
    throw thrown;
  }
  throw new Error('nothing was thrown');
}

describe('readSettings', () => {
  it('gives the documented defaults for an empty environment', () => {
    expect(readSettings({})).toEqual(Object.fromEntries(settingKeys.map((key) => [key, settingDefinitions[key].fallback])));
    expect(defaultSettings.timeoutMs).toBe(300_000);
    expect(defaultSettings.bucketBytes).toBe(25 * 1024 * 1024);
  });

  it('reads every kind', () => {
    const settings = readSettings({
      SHOAL_TIMEOUT_MS: '5min',
      SHOAL_SLICE_BYTES: '1.5MiB',
      SHOAL_IN_FLIGHT: '3',
      SHOAL_NATIVE: 'off',
      SHOAL_ORDER: 'Relaxed',
      SHOAL_ALGORITHMS: 'all-reduce=ring',
      SHOAL_FABRICS: ' shm, tcp ,',
    });
    expect(settings).toMatchObject({
      timeoutMs: 300_000,
      sliceBytes: 1_572_864,
      inFlightMax: 3,
      native: false,
      order: 'relaxed',
      algorithms: 'all-reduce=ring',
      fabrics: ['shm', 'tcp'],
    });
  });

  it('treats an empty variable as unset', () => {
    expect(readSettings({ SHOAL_TIMEOUT_MS: '', SHOAL_FABRICS: '', FAIRRING_SLICE_SIZE: '' })).toEqual(defaultSettings);
  });

  it('is plain data that survives a structured clone', () => {
    const settings = readSettings({ SHOAL_INTERFACES: 'eth0,^lo' });
    expect(structuredClone(settings)).toEqual(settings);
  });

  it.each([
    ['SHOAL_TIMEOUT_MS', 'soon', '500ms'],
    ['SHOAL_TIMEOUT_MS', '0', 'from 1'],
    ['SHOAL_IN_FLIGHT', '1.5', 'whole number'],
    ['SHOAL_IN_FLIGHT', '63', 'from 1 to 62'],
    ['SHOAL_IN_FLIGHT', '-1', 'from 1 to 62'],
    ['SHOAL_SLICE_BYTES', '25MX', '25MiB'],
    ['SHOAL_SLICE_BYTES', '1', 'at least 4KiB'],
    ['SHOAL_SLICE_BYTES', '1000001', 'a multiple of 8'],
    ['FAIRRING_TOTAL_MEMORY', '50000001', 'a multiple of 8'],
    ['FAIRRING_SLICE_SIZE', 'big', '25MiB'],
    ['SHOAL_NATIVE', 'maybe', '0, false, no, off'],
    ['SHOAL_ORDER', 'random', 'canonical | relaxed'],
  ])('refuses %s=%s and says what is accepted', (variable, value, accepted) => {
    const error = errorOf(() => readSettings({ [variable]: value }));
    expect(error.code).toBe('config');
    expect(error.message).toContain(variable);
    expect(error.message).toContain(JSON.stringify(value));
    expect(error.message).toContain(accepted);
  });

  it("reads another system's names, in order, and prefers its own", () => {
    expect(readSettings({ FAIRRING_TOTAL_MEMORY: '104857600' }).stagingBytes).toBe(104_857_600);
    const all = { NCCL_SOCKET_IFNAME: '^docker0,lo', GLOO_SOCKET_IFNAME: 'eth1', TP_SOCKET_IFNAME: 'eth0' };
    expect(readSettings(all).interfaces).toEqual(['eth0']);
    expect(readSettings({ ...all, SHOAL_INTERFACES: '10.0.0.0/8' }).interfaces).toEqual(['10.0.0.0/8']);
    expect(readSettings({ NCCL_SOCKET_IFNAME: '^docker0,lo' }).interfaces).toEqual(['^docker0', '^lo']);
    expect(readSettings({ NCCL_SOCKET_IFNAME: '=eth0,eth1' }).interfaces).toEqual(['eth0', 'eth1']);
  });
});

it("reads ByteScheduler's variables as it means them", () => {
  expect(readSettings({ BYTESCHEDULER_TIMELINE: 'out/t.json' }).scheduleTimeline).toBe('out/t.json');
  expect(readSettings({ BYTESCHEDULER_DEBUG: '1' }).logLevel).toBe('debug');
  expect(readSettings({ BYTESCHEDULER_DEBUG: '0' }).logLevel).toBe('warn');
  expect(() => readSettings({ BYTESCHEDULER_DEBUG: 'loud' })).toThrow('BYTESCHEDULER_DEBUG');
  expect(readSettings({ BYTESCHEDULER_PARTITION: '1025' }).schedulePartitionBytes).toBe(4100);
  expect(() => readSettings({ BYTESCHEDULER_PARTITION: '-5' })).toThrow('BYTESCHEDULER_PARTITION: "-5" is not valid');
});

it('quotes an invalid value as it was written', () => {
  expect(() => readSettings({ BYTESCHEDULER_CREDIT: '1e30' })).toThrow('BYTESCHEDULER_CREDIT: "1e30" is not valid');
});

describe('resolveSettings', () => {
  it('says where each value came from', () => {
    const { sources } = resolveSettings({ SHOAL_ORDER: 'relaxed', FAIRRING_SLICE_SIZE: '1MiB' });
    expect(sources.order).toEqual({ from: 'environment', variable: 'SHOAL_ORDER' });
    expect(sources.sliceBytes).toEqual({ from: 'alias', variable: 'FAIRRING_SLICE_SIZE' });
    expect(sources.timeoutMs).toEqual({ from: 'default', variable: 'SHOAL_TIMEOUT_MS' });
  });

  it('names the nearest setting for a variable nobody reads', () => {
    const { warnings } = resolveSettings(
      { SHOAL_TIMEOUT: '1', SHOAL_QQQQQQQQQQQQQQQQ: '1', SHOAL_JOB: '1', PATH: '/bin' },
      { reserved: ['SHOAL_JOB'] },
    );
    expect(warnings).toEqual([
      'SHOAL_QQQQQQQQQQQQQQQQ is not a setting of Shoal and has no effect',
      'SHOAL_TIMEOUT is not a setting of Shoal and has no effect; did you mean SHOAL_TIMEOUT_MS?',
    ]);
  });

  it('never shows a secret', () => {
    const rows = describeSettings(resolveSettings({ SHOAL_SECRET: 'hunter2' }));
    expect(JSON.stringify(rows)).not.toContain('hunter2');
    expect(rows.find((row) => row.key === 'secret')?.value).toBe('(set)');
  });
});

describe('the registry', () => {
  it('has unique names, aliases included', () => {
    const names = definitions.flatMap((one) => [one.name, ...one.aliases.map((alias) => alias.name)]);
    expect(new Set(names).size).toBe(names.length);
  });

  it('reads back what it prints', () => {
    for (const key of settingKeys) {
      const definition: SettingDefinition = settingDefinitions[key];
      if (definition.sensitive) continue;
      expect(readSettings({ [definition.name]: formatSetting(definition, definition.fallback) })[key]).toEqual(definition.fallback);
    }
  });

  it('never throws anything but a config error', () => {
    fc.assert(
      fc.property(fc.constantFrom(...definitions), fc.string(), (definition, value) => {
        try {
          readSettings({ [definition.name]: value });
        } catch (thrown) {
          expect(isShoalError(thrown) && thrown.code).toBe('config');
        }
      }),
    );
  });
});

describe('quantities', () => {
  it('reads sizes and durations', () => {
    expect(['8', '4k', '4KiB', '4 kb', '1.5G'].map(parseBytes)).toEqual([8, 4096, 4096, 4000, 1_610_612_736]);
    expect(['8', '2s', '1.5 min', '1h'].map(parseMilliseconds)).toEqual([8, 2000, 90_000, 3_600_000]);
    expect(['', '-1', '1e9', '1.1', 'KiB', '1 constructor', '99999999T'].map(parseBytes)).toEqual(Array(7).fill(undefined));
  });

  it('reads back every size it prints', () => {
    fc.assert(fc.property(fc.maxSafeNat(), (bytes) => parseBytes(formatBytes(bytes)) === bytes));
  });
});
