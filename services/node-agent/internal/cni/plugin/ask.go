package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"fairlead.dev/services/node-agent/internal/redirect"
)

// MaxMessage bounds a Request and an Answer, in bytes. Annotations, of which options are made, have 256 KiB at most.
const MaxMessage = 1 << 20

// Request asks about a Pod; without a name, only whether the agent answers.
type Request struct {
	Namespace, Name, UID string
	// Nameservers are those of the Pod's resolv.conf.
	Nameservers []netip.Addr
}

// Nameservers are the servers of a resolv.conf; those that are no addresses are left out, as by the C library.
func Nameservers(servers []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range servers {
		if address, err := netip.ParseAddr(s); err == nil {
			out = append(out, address.WithZone("").Unmap())
		}
	}
	return out
}

// Answer is the agent's.
type Answer struct {
	// Error is why the agent cannot say; everything else is then unset.
	Error string `json:",omitempty"`
	// Redirect is true if the Pod gets rules.
	Redirect bool
	Options  redirect.RawOptions
}

// redial is how often Ask tries to reach an agent that starts, for patience.
const (
	redial   = 100 * time.Millisecond
	patience = 5 * time.Second
)

// Ask sends a request to the agent on a unix socket. It waits a little for an agent that is about to start.
func Ask(ctx context.Context, socket string, r Request) (*Answer, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("the node's agent is not there: %w", err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	answer := &Answer{}
	if err = json.NewEncoder(conn).Encode(r); err == nil {
		err = json.NewDecoder(io.LimitReader(conn, MaxMessage)).Decode(answer)
	}
	if err != nil {
		return nil, fmt.Errorf("the node's agent does not answer: %w", err)
	}
	return answer, nil
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	for began := time.Now(); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil || ctx.Err() != nil || time.Since(began) > patience {
			return conn, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(redial):
		}
	}
}
