// The client of program/main.go, for Node.js: GET /call?target=xds:///server:7070&n=10&header=k:v&timeout=5s on $HOST:$PORT.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const grpc = require('@grpc/grpc-js');
const xds = require('@grpc/grpc-js-xds');

xds.register();

// google.protobuf.StringValue with a short value, by hand: field 1, length, bytes.
const encode = (text) => {
  const value = Buffer.from(text);
  return Buffer.concat([Buffer.from([0x0a, value.length]), value]);
};
const decode = (message) => {
  let length = 0, shift = 0, at = 1;
  for (;;) {
    const byte = message[at++];
    length |= (byte & 0x7f) << shift;
    if (byte < 0x80) break;
    shift += 7;
  }
  return message.subarray(at, at + length).toString();
};
const Echo = grpc.makeGenericClientConstructor({
  call: {
    path: '/fairlead.test.Echo/Call', requestStream: false, responseStream: false,
    requestSerialize: encode, requestDeserialize: decode, responseSerialize: encode, responseDeserialize: decode,
  },
}, 'fairlead.test.Echo');

const channels = new Map(); // one per target, so that it is one channel that follows changes
const channel = (target) => {
  if (!channels.has(target)) {
    channels.set(target, new Echo(target, new xds.XdsChannelCredentials(grpc.credentials.createInsecure())));
  }
  return channels.get(target);
};

const once = (target, header, timeout) => new Promise((resolve, reject) => {
  const metadata = new grpc.Metadata();
  if (header) metadata.set(...header.split(':'));
  channel(target).call('hello', metadata, { deadline: Date.now() + timeout }, (err, answer) => {
    if (err) reject(err);
    else resolve(JSON.parse(answer));
  });
});

const call = async (query) => {
  const out = { seen: [], errors: [] };
  const timeout = parseFloat(query.get('timeout')) * 1000;
  for (let i = 0; i < Number(query.get('n')); i++) {
    try {
      out.seen.push(await once(query.get('target'), query.get('header'), timeout));
    } catch (err) {
      out.errors.push(String(err));
    }
  }
  return out;
};

const serve = () => {
  const server = http.createServer(async (req, res) => {
    const url = new URL(req.url, 'http://localhost');
    if (url.pathname === '/call') res.write(JSON.stringify(await call(url.searchParams)));
    res.end();
  });
  server.listen(Number(process.env.PORT), process.env.HOST);
  process.on('SIGTERM', () => process.exit(0));
};

const bootstrapped = setInterval(() => {
  if (!fs.existsSync(process.env.GRPC_XDS_BOOTSTRAP)) return;
  clearInterval(bootstrapped);
  serve();
}, 50);
