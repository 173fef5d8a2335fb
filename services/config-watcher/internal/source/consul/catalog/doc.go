// Package catalog follows the services and instances of a Consul datacenter: New makes a Catalog of an address and a
// token, Run reads and calls a Handler, Status tells how it goes. Nothing is removed unless it is certain that Consul
// has it no more.
//
// # What is read
//
// One reading of /v1/catalog/services waits for changes of the names, and one of /v1/health/service/NAME for each
// service that Config.Filter selects (a watch). The gRPC subscription of Consul's own agents is private and has no
// wildcard; /v1/health/state/any answers with all checks at each change.
//
// By TLS with HTTP/2 there are 200 readings on each of at most 60 connections. Without HTTP/2 a reading has a
// connection of its own, of which Consul admits 200 (limits.http_max_conns_per_client): 150 services are watched, the
// others are read in turn, and the state is LIMITED. A service is read ten times a second at most, after a burst of
// two, and less often the larger the answer is; all of a catalog together 2,000 times a second.
//
// # What counts
//
// An answer to a reading that waits only adds and changes. If it lacks something that is known, or is older than one
// before, the following must hold until something is removed, in this order:
//
//  1. Consul says that the token may read what is missing (POST /v1/internal/acl/authorize, with a sample if it is
//     much), or that ACLs are off. Where ACLs are on and there is no token, nothing is removed.
//  2. A certain reading lacks it too: one with ?consistent, which the leader answers after it has made sure that it
//     leads, with X-Consul-KnownLeader: true, an index, and without X-Consul-Results-Filtered-By-ACLs.
//  3. If its index is lower than one seen before, another one two seconds later does.
//
// A service ends by the names alone: Handler.Service never has no instances. So what a restored or emptied catalog
// lacks comes as one reading, for a caller that withholds mass removals. If the names are filtered, since the token
// sees some services alone, a service is gone after its own certain readings have had no instance for two minutes.
//
// # What Consul does (1.21 and 1.22)
//
//   - The agent answers a reading that waits from its streaming view. Such an answer says
//     X-Consul-Query-Backend: streaming, X-Consul-KnownLeader: false always, and never that it was filtered. A view
//     that was reset while a reading waited answers 200 with no instances and the index that it was asked for.
//   - A reading without an index goes to the leader and has all headers.
//   - A token that lacks rights gets 200 with less. X-Consul-Results-Filtered-By-ACLs says so, but not to the
//     anonymous token, and not if the server cannot resolve the token: with the primary datacenter away and
//     acl.down_policy deny it answers 200 with nothing. Every server registers the service "consul", so a catalog
//     without any service is not believed. A token that does not exist gets 403.
//   - The agent remembers the rights of a token for 30 s, which authorize tells.
//   - A reading that waits returns when the index is higher than its own. After a snapshot was restored indices are
//     lower; who asks with an old one waits until the time is up, and who waits at that moment gets what was before,
//     with the index that it was asked for, or of the streaming view nothing. So what came before the time was up and
//     is unchanged is read again, whatever has failed is read without waiting, and all services are when the index of
//     the names goes back.
//   - A service without instances has the index of the last end of any service.
//   - The names of services that differ in case alone share their readings.
package catalog
