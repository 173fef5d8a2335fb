package expect

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// logTime is how long a proxy may take to write what it knows of a connection, flowTime how long a packet may take to
// be looked at.
const (
	logTime  = 3 * time.Second
	flowTime = time.Second
)

// MTLS is TLS whose client showed a certificate that the server's proxy, or the server itself, verified.
const mtls = "mtls"

// fact is what ran between the pods for one call.
type fact struct {
	wire, identity string
	// why says where it is known from.
	why string
	// from is who connected, if the proxy's log tells.
	from netip.AddrPort
}

// facts checks identity and wire.
func (c *check) facts(ctx context.Context) {
	e := c.expect
	if !e.Identity.Given && e.Wire == "" {
		return
	}
	known := map[string]fact{}
	c.each(c.results, func(r *caller.Result) string {
		var f fact
		var at string
		if s := c.reached[r.ID]; s != nil {
			f, at = c.fact(ctx, s, known), s.Workload
		} else {
			if r.Err != nil && e.Error != "" {
				return "" // nobody was reached, as expected
			}
			if f, at = c.refused(ctx, r); at == "" {
				return fmt.Sprintf("wire, identity: no server was reached (%s)", outcome(r))
			}
		}
		switch {
		case e.Wire != "" && f.wire != e.Wire:
			return fmt.Sprintf("wire: want %s, got %s at %s (%s)", e.Wire, f.wire, at, f.why)
		case e.Identity.Given && f.identity != e.Identity.URI:
			return fmt.Sprintf("identity: want %s, got %s at %s (%s)", orNone(e.Identity.URI), orNone(f.identity), at, f.why)
		}
		return ""
	})
}

// refused is what the log of a server's proxy says of a request that the proxy answered itself, as one that a policy
// refuses, and which workload that is; "" if no proxy has such a line.
func (c *check) refused(ctx context.Context, r *caller.Result) (fact, string) {
	for waited := time.Duration(0); ; waited += again {
		for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
			server := c.Servers[name]
			entries, err := server.Log.After(c.logs[name])
			if err != nil {
				continue // as if it had no line
			}
			for _, e := range entries {
				if e.Call != r.ID || !c.isNear(e.RemoteIP(), server) {
					continue
				}
				f := fact{wire: string(wire.Plaintext), identity: e.Peer, from: e.From(), why: "the proxy's log: from " + e.Remote}
				switch {
				case e.Peer != "":
					f.wire = mtls
				case e.TLS != "":
					f.wire = string(wire.TLS)
				}
				return f, name
			}
		}
		if r.Err != nil || waited >= flowTime || wait.Pause(ctx, again) != nil {
			return fact{}, ""
		}
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// fact finds out what ran before the server that saw a request. What is known of connections, not of requests, is
// remembered by server.
func (c *check) fact(ctx context.Context, s *echo.Seen, known map[string]fact) fact {
	server := c.Servers[s.Workload]
	if server == nil {
		return fact{why: "the workload has gone"}
	}
	flows := c.flows(ctx, server, s)
	class, why := c.class(ctx, server, s, flows)
	f := fact{wire: class, why: why}
	if class == string(wire.Plaintext) {
		return f // nobody can have shown a certificate
	}
	if !server.HasProxy {
		if s.TLS != nil {
			f.identity = s.TLS.PeerURI
			if f.identity != "" || s.TLS.PeerSubject != "" {
				f.wire = mtls
			}
		}
		return f
	}
	f.identity = forwarded(server, s)
	if f.identity != "" {
		f.why += "; x-forwarded-client-cert"
	} else {
		key := fmt.Sprint(s.Workload, s.LocalPort)
		if s.Version != "" {
			key += s.Call
		}
		logged, ok := known[key]
		if !ok {
			logged = c.logged(ctx, server, s, flows)
			known[key] = logged
		}
		f.identity = logged.identity
		f.why += "; " + logged.why
	}
	if f.identity != "" {
		f.wire = mtls
	}
	return f
}

// forwarded is the identity that the server's own proxy wrote into the request.
func forwarded(server *Server, s *echo.Seen) string {
	elements := wire.ParseXFCC(strings.Join(s.Headers.Values("X-Forwarded-Client-Cert"), ","))
	if len(elements) == 0 {
		return ""
	}
	if last := elements[len(elements)-1]; last.By == server.Identity {
		return last.URI
	}
	return ""
}

// flows are the connections that brought calls to the server: those from where the call came, if there are any, else
// all. It waits until there is one.
func (c *check) flows(ctx context.Context, server *Server, s *echo.Seen) []wire.Flow {
	if server.Sniffer == nil {
		return nil
	}
	for waited := time.Duration(0); ; waited += again {
		flows := incoming(server, s, server.Sniffer.Flows(c.began))
		if near := slices.DeleteFunc(slices.Clone(flows), func(f wire.Flow) bool { return !slices.Contains(c.From, f.Client.Addr()) }); len(
			near) > 0 {
			flows = near
		}
		if len(flows) > 0 || waited >= flowTime || wait.Pause(ctx, again) != nil {
			return flows
		}
	}
}

// class is what the connections carried.
func (c *check) class(ctx context.Context, server *Server, s *echo.Seen, flows []wire.Flow) (class, why string) {
	if server.Sniffer == nil {
		return "", "nobody looked at the wire"
	}
	count := map[wire.Class]int{}
	for _, f := range flows {
		count[f.Class]++
	}
	why = fmt.Sprintf("%d connections carried bytes to it", len(flows))
	switch {
	case len(flows) == 0:
		return "", "no connection to it carried bytes"
	case len(count) == 1:
		return string(flows[0].Class), why
	}
	if at := c.logged(ctx, server, s, flows).from; at.IsValid() {
		for _, f := range flows {
			if f.Client == at {
				return string(f.Class), "of several connections that carried bytes, the one from " + at.String()
			}
		}
	}
	return fmt.Sprintf("both: %v", count), why
}

// incoming are the connections to a server: those to the port of the application, if there are any, else all.
func incoming(server *Server, s *echo.Seen, flows []wire.Flow) []wire.Flow {
	flows = slices.DeleteFunc(flows, func(f wire.Flow) bool { return !slices.Contains(server.IPs, f.Server.Addr()) })
	for _, f := range flows { // a server without a proxy saw the connection itself
		if f.Client == netip.AddrPortFrom(address(s.SourceIP), uint16(s.SourcePort)) { //nolint:gosec // a port
			return []wire.Flow{f}
		}
	}
	if to := slices.DeleteFunc(slices.Clone(flows), func(f wire.Flow) bool { return int(f.Server.Port()) != s.LocalPort }); len(to) > 0 {
		return to
	}
	return flows
}

func address(text string) netip.Addr {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return ip
}

// logged is what the access log of the server's proxy says of the connection that brought a request.
func (c *check) logged(ctx context.Context, server *Server, s *echo.Seen, flows []wire.Flow) fact {
	for ; ; c.logWaited += again {
		entries, err := server.Log.After(c.logs[s.Workload])
		if err != nil {
			return fact{why: err.Error()}
		}
		if e := c.entry(entries, server, s, flows); e != nil {
			return fact{identity: e.Peer, from: e.From(), why: fmt.Sprintf("the proxy's log: from %s, TLS %s", e.Remote, orNone(e.TLS))}
		}
		if server.Log.Path == "" || c.logWaited >= logTime || wait.Pause(ctx, again) != nil {
			return fact{why: "the proxy logged nothing of it"}
		}
	}
}

// entry finds the line about a request: by the proxy's connection to the application, its id, or who connected where.
// Who connected counts only if the wire has the connection: the line about a connection that the proxy refused in the
// step before may be late.
func (c *check) entry(entries []wire.Entry, server *Server, s *echo.Seen, flows []wire.Flow) *wire.Entry {
	source := netip.AddrPortFrom(address(s.SourceIP), uint16(s.SourcePort)).String() //nolint:gosec // a port
	id := s.Headers.Get("X-Request-Id")
	for _, test := range []func(*wire.Entry) bool{
		func(e *wire.Entry) bool { return e.Source == source },
		func(e *wire.Entry) bool { return id != "" && e.RequestID == id && c.isNear(e.RemoteIP(), server) },
		func(e *wire.Entry) bool {
			return e.Source == "" && e.LocalPort() == s.LocalPort && slices.Contains(c.From, e.RemoteIP()) &&
				(server.Sniffer == nil || slices.ContainsFunc(flows, func(f wire.Flow) bool { return f.Client == e.From() }))
		},
	} {
		if at := slices.IndexFunc(entries, func(e wire.Entry) bool { return test(&e) }); at >= 0 {
			return &entries[at]
		}
	}
	return nil
}

// isNear tells whether somebody else than the server's own application connected.
func (*check) isNear(remote netip.Addr, server *Server) bool {
	return remote.IsValid() && !remote.IsLoopback() && !slices.Contains(server.IPs, remote)
}
