// Package subscription is the state machine of what one ADS client subscribes to. It has no lock, does no I/O and
// starts nothing: package serve tells it what happens, and asks it what may be sent (Client.Flush).
//
// A client does not store what it holds: that is the snapshot of its class, except for the names in dirty and deferred.
// Each type has one subscription, which goes through these states:
//
//	event                       state before           action, state after
//	first request               –                      what differs from the initial versions is dirty
//	request with names          any                    new names are dirty and requested: answered in any case
//	request that drops names    any                    released; neither dirty nor rejected, unless under a wildcard
//	request that drops names    wildcard               released; delta: dirty and requested, charged until answered
//	the class has changed       covered                dirty, unless sent already (ahead)
//	Flush                       dirty                  a response: outstanding, dirty no more
//	Flush                       outstanding            nothing of this type
//	Flush                       earlier types pending  nothing, until they are answered or the order timeout has passed
//	Flush, no room              dirty                  nothing; dirty
//	ACK                         outstanding            removals confirmed; dirty names may go
//	NACK                        outstanding            versions rejected until they change; the next response has all
//
// The tables in client_test.go are these rules with examples. Where to look:
//
//   - client.go: the events. delta.go and sotw.go: the requests of the two variants. subscribe.go, names.go and
//     owed.go: names, and what they are charged.
//   - dirty.go: marks. respond.go: what a response has. order.go: which types wait for which (make before break).
//   - ack.go and nack.go: what an answer means. status.go: what is reported.
//   - Virtual hosts are a policy on their subscription: vhds.go follows the route configurations whose virtual hosts
//     are resources of their own, vhdsopen.go handles the first request for them, vhdsrespond.go collects their
//     responses, and ondemand.go is for clients that request each one by name. warming.go sends endpoints again when
//     Envoy warms their cluster.
package subscription
