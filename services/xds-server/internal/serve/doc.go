// Package serve implements the ADS server: the delta and the state-of-the-world (sotw) variant of xDS.
//
// Each stream has one goroutine that receives and one that sends (loop.go). Its class (package plan) tells it which
// resources may have changed, and it answers requests from the snapshot of the class: nothing is built, marshalled or
// compared for each stream. Package wire has the messages, package quota what an identity may use.
//
// # The life of a stream
//
//   - Open: Server.handle (handler.go) asks quota.Quotas.Open and refuseBanned (ban.go), then starts receive and
//     transmit.
//   - Receive: stream.receive (loop.go) throttles the client and answers Istio's debug types (debug.go). A wire.Request
//     decodes long lists of names and versions only if they differ from what the class has.
//   - First request: stream.identify (stream.go) checks the node against the peer's identity and joins the class.
//   - Every request: handleRequest (request.go). Client.Request of package subscription changes what is subscribed, or
//     takes the ACK or NACK.
//   - Push: flush (delivery.go) asks Client.Flush what may go. deliver asks quota.UnsentBytes and puts it into the
//     outbox. transmit (loop.go) sends it as a wire.Response.
//   - Status: reports.markChanged (reports.go) queues the stream for the next Report, which stream.status (status.go)
//     describes; answered.go counts the responses that are not answered yet.
//   - Trust: noteTrust (trusted.go) tells acks.Ledger which generation of the trust bundle an agent has acknowledged.
//   - End: the client, the maximum age, a stalled client, a ban, Drain or Reconnect (both in reconnect.go; package
//     balance calls Reconnect) or an error. stream.close releases everything.
//
// A new revision comes in by Server.Apply (server.go). Streams whose proxies may have changed class are found by
// subscribersIndex (subscribers.go) and moved by reclassify (reclassify.go). Then each class calls stream.Changed
// (changequeue.go), which tells the subscriptions what has changed and calls flush.
//
// # Locks
//
// stream.mu guards a stream; it is taken by stream.lock and released by stream.unlock, which apply the changes that
// were queued meanwhile. A goroutine that holds one stream's mu never takes another stream's. While mu is held, these
// may be taken: Account.Planning, then the locks of class and engine, and those of the packages quota, ondemand and
// acks, reports, subscribersIndex and answerTracker, each released before the next. The lock of Quotas may be held when
// that of Refusals is taken. Nobody who holds one of these locks takes a stream's mu: class and quota call streams
// without their locks. Server.mu guards the set of streams, changeQueue.changesMu the queued changes; nothing else is
// taken while one of them is held, except that changesMu is held when the engine's served revision is read.
package serve
