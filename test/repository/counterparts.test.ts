/** The tables of counterparts of other systems' classes and calls: they leave none out, and the names here exist. */
import { describe, expect, it } from 'vitest';
import { readText } from '../../scripts/repository.ts';
import * as kvstore from '../../src/kvstore/index.ts';
import { DependencyEngine } from '../../src/engine/engine.ts';
import * as messaging from '../../src/messaging/index.ts';
import { NameTable } from '../../src/rendezvous/protocol/name-table.ts';
import { PooledMemory } from '../../src/rendezvous/protocol/pooled-memory.ts';
import { TensorReceiver } from '../../src/rendezvous/protocol/tensor-receiver.ts';
import { TensorRequest } from '../../src/rendezvous/protocol/tensor-request.ts';
import { TensorSender } from '../../src/rendezvous/protocol/tensor-sender.ts';
import { Core } from '../../src/scheduler/core.ts';
import { Task } from '../../src/scheduler/task.ts';
import { Tuner } from '../../src/scheduler/tuner/tuner.ts';

interface Row {
  readonly theirs: string;
  readonly ours: string;
}

/** The first table below the heading: the code of its first two columns. */
function rowsBelow(page: string, heading: string): Row[] {
  const [, section = ''] = readText(page).split(`\n## ${heading}\n`);
  const [, table = ''] = /^\s*\|.*\n\|[-|]+\n((?:\|.*\n)+)/.exec(section) ?? [];
  const codeOf = (cell = ''): string => Array.from(cell.matchAll(/`([^`]+)`/g), ([, code]) => code).join('; ');
  return table
    .trimEnd()
    .split('\n')
    .map((line) => line.split(/(?<!\\)\|/))
    .map(([, theirs, ours]) => ({ theirs: codeOf(theirs), ours: codeOf(ours) }));
}

const wordsOf = (text: string): Set<string> => new Set(text.match(/\w+/g));

describe("SINGA's messages", () => {
  const rows = rowsBelow('docs/messaging.md', 'The document and its counterpart');

  it.each([
    ['addresses', 'Addr AddrGrp AddrID AddrProc AddrType'],
    ['Msg', 'Msg SwapAddr AddFrame FrameSize FrameData FrameStr FirstFrame LastFrame NextFrame AddFormatFrame ParseFormatFrame'],
    ['its header', 'src set_src dst set_dst type set_type set_trgt trgt_val trgt_version size ParseFromZmsg DumpToZmsg'],
    ['types of messages', 'kGet kPut kRequest kSync kFeaBlob kGradBlob'],
    ['sockets', 'SocketInterface Send Receive InternalID Dealer Connect Router Bind Poller Add Wait Terminated'],
    ['queues', 'SafeQueue Push Front Pop empty'],
  ])('%s: all have a row', (_, names) => {
    const named = wordsOf(rows.map(({ theirs }) => theirs).join(' '));
    expect(names.split(' ').filter((name) => !named.has(name))).toEqual([]);
  });

  it('have counterparts that exist', () => {
    const { Msg, Dealer, Router, Poller } = messaging;
    const objects: Readonly<Record<string, readonly object[]>> = {
      msg: [Msg.prototype],
      socket: [Dealer.prototype, Router.prototype],
      dealer: [Dealer.prototype],
      router: [Router.prototype],
      MessageType: [kvstore.MessageType],
    };
    const ours = rows.map((row) => row.ours).join('; ');
    const members = Array.from(ours.matchAll(/\b(msg|socket|dealer|router|MessageType)\.(\w+)/g));
    expect(members.length).toBeGreaterThan(20);
    expect(members.filter(([, object, name]) => !objects[object].every((each) => name in each)).map(([text]) => text)).toEqual([]);
    const exported = Array.from(
      ours.matchAll(/\bnew (\w+)|(?<![.\w])(\w+Of|makeAddress|parseAddress)\b/g),
      ([, name, call]) => name ?? call,
    );
    expect(exported.length).toBeGreaterThan(7);
    expect(exported.filter((name) => !(name in messaging))).toEqual([]);
    expect(['add', 'wait', 'terminated'].filter((name) => !(name in Poller.prototype))).toEqual([]);
  });
});

describe('verbs with 0 copies', () => {
  const rows = rowsBelow('docs/rendezvous.md', 'The document and its counterpart');

  it.each([
    ['classes', 'RdmaImmDataType RdmaWriteIDType RdmaWriteID RemoteAddressContext RdmaTensorMetaData RdmaMemoryMgr RdmaTensorResponse'],
    ['its request', 'RdmaTensorRequest Start RecvTensorMetaData RecvTensorContent'],
    ['messages', 'TENSOR_REQUEST BUFFER_REQUEST BUFFER_RESPONSE TENSOR_WRITE TENSOR_IDLE'],
  ])('%s: all have a row', (_, names) => {
    const named = wordsOf(rows.map(({ theirs }) => theirs.replaceAll('RDMA_MESSAGE_', '')).join(' '));
    expect(names.split(' ').filter((name) => !named.has(name))).toEqual([]);
  });

  it('have counterparts that exist', () => {
    const ours = rows.map((row) => row.ours).join('; ');
    const request = Array.from(ours.matchAll(/\b(start|recvTensor\w+)\b/g), ([name]) => name);
    expect(request.length).toBe(3);
    expect(request.filter((name) => !(name in TensorRequest.prototype))).toEqual([]);
    const classes = { NameTable, PooledMemory, TensorRequest, TensorSender, TensorReceiver };
    expect(Object.keys(classes).filter((name) => !wordsOf(ours).has(name))).toEqual([]);
    expect('onImmediate' in TensorReceiver.prototype && ours.includes('TensorReceiver.onImmediate')).toBe(true);
  });
});

describe("MXNet's KVStore", () => {
  const rows = rowsBelow('docs/kvstore.md', 'Calls');

  it('has a row for each of its calls', () => {
    const calls =
      'create init push pull pushpull row_sparse_pull broadcast barrier set_optimizer set_updater set_gradient_compression save_optimizer_states rank num_workers type';
    const named = wordsOf(rows.map(({ theirs }) => theirs).join(' '));
    expect(calls.split(' ').filter((name) => !named.has(name))).toEqual([]);
  });

  it('has counterparts that exist', async () => {
    const names = rows.flatMap(({ ours }) => Array.from(ours.matchAll(/(?:^|; )(\w+)/g), ([, name]) => name));
    expect(names.length).toBeGreaterThan(18);
    await using store = await kvstore.create('local');
    expect(names.filter((name) => !(name in store || name in kvstore))).toEqual([]);
  });
});

describe("ByteScheduler's classes", () => {
  const rows = rowsBelow('docs/scheduler.md', "ByteScheduler's names");

  it.each([
    ['ScheduledKVStore', 'ScheduledKVStore init push pull'],
    ['ByteCore', 'ByteCore start _loop post _queue _credit _credit_limit _partition _running _pending _first_key _step'],
    [
      'ByteTask',
      'ByteTask partition immediate_do prepare do notify_ready notify_finish _prepare_callback _do_callback _start_callback _end_callback',
    ],
    ['KVStoreTask', 'KVStoreTask _immediate_do _prepare _do _post_start_barrier _post_start_op _post_push_pull_barrier'],
    ['KVStoreTask', '_post_communication _post_end_op _post_end_barrier _partition_single_tensor'],
    [
      'the library',
      'BYTESCHEDULER_LIB bytescheduler_mxnet_on_complete bytescheduler_mxnet_op bytescheduler_mxnet_barrier bytescheduler_get_ndarray_avatar',
    ],
    ['tuning', 'Tuner record _tune space max_num_steps BYTESCHEDULER_CREDIT_TUNING BYTESCHEDULER_PARTITION_TUNING'],
    ['variables', 'BYTESCHEDULER_PARTITION BYTESCHEDULER_CREDIT BYTESCHEDULER_TIMELINE BYTESCHEDULER_DEBUG USE_BYTESCHEDULER'],
  ])('%s: all have a row', (_, names) => {
    const named = wordsOf(rows.map(({ theirs }) => theirs).join(' '));
    expect(names.split(' ').filter((name) => !named.has(name))).toEqual([]);
  });

  it('have counterparts that exist, where they are built', () => {
    const classes: Readonly<Record<string, object>> = {
      core: Core.prototype,
      task: Task.prototype,
      engine: DependencyEngine.prototype,
      tuner: Tuner.prototype,
    };
    const members = Array.from(
      rows
        .map(({ ours }) => ours)
        .join('; ')
        .matchAll(/\b(core|task|engine|tuner)\.(\w+)/g),
    );
    expect(members.length).toBeGreaterThan(15);
    expect(members.filter(([, object, name]) => !(name in classes[object])).map(([text]) => text)).toEqual([]);
  });
});
