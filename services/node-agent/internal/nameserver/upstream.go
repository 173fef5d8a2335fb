package nameserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

const (
	// askTimeout bounds one question to one server.
	askTimeout = 3 * time.Second
	// maxAsking bounds the questions that are asked at a time; more are answered with a failure at once.
	maxAsking = 256
)

var (
	errNoServer = errors.New("resolv.conf names no server")
	errTooMany  = fmt.Errorf("more than %d queries wait for an answer", maxAsking)
)

// upstream asks the servers of resolv.conf.
type upstream struct {
	servers []string // host:port
	asking  chan struct{}
}

func newUpstream(servers []string) *upstream {
	return &upstream{servers: servers, asking: make(chan struct{}, maxAsking)}
}

// ask asks the servers in order, by the protocol the query came by, until one answers. What one says of itself that it has failed or does not
// want to answer goes on to the next; if none does better, that is the answer.
func (u *upstream) ask(ctx context.Context, query *dns.Msg, network string) (*dns.Msg, error) {
	select {
	case u.asking <- struct{}{}:
		defer func() { <-u.asking }()
	default:
		return nil, errTooMany
	}
	last, failed := errNoServer, (*dns.Msg)(nil)
	client := &dns.Client{Net: network, Timeout: askTimeout}
	for _, server := range u.servers {
		question := query.Copy()
		question.Id = dns.Id()
		answer, _, err := client.ExchangeContext(ctx, question, server)
		switch {
		case err != nil:
			last = fmt.Errorf("ask %s: %w", server, err)
		case answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused:
			failed = answer
		default:
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed != nil {
		return failed, nil
	}
	return nil, last
}
