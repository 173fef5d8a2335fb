package nameserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// askTimeout bounds one exchange with one server.
	askTimeout = 3 * time.Second
	// queryTimeout bounds a question to all servers.
	queryTimeout = 2 * askTimeout
	// maxAsking bounds the questions that are asked upstream at a time, each of which holds a socket. More fail at
	// once.
	maxAsking = 256
	// maxWaiting bounds the queries that wait for an upstream answer, also those that share one. Each is a goroutine of
	// a few KiB.
	maxWaiting = 2048
	// maxStray bounds the datagrams that do not answer the question, since a forger may be guessing. After that many
	// the question is asked by TCP.
	maxStray = 32
	// udpSize is the largest datagram asked for. It is never fragmented (DNS flag day 2020), and fragments can be
	// forged.
	udpSize = 1232
)

var (
	errNoServer = errors.New("resolv.conf names no server")
	errTooMany  = errors.New("too many queries wait for an answer")
	errStray    = errors.New("the datagrams that come are no answers to the question")
	errSpelling = errors.New("the answer's question is not spelt as it was asked")
)

// upstream is the client of the servers of resolv.conf. Queries with the same key share one exchange.
type upstream struct {
	servers []string // host:port
	asking  chan struct{}
	waiting chan struct{}
	flights singleflight.Group
	// cache gets an answer before the queries that wait for it continue, so that the next such query finds it.
	cache *cache
}

func newUpstream(servers []string, cache *cache) *upstream {
	return &upstream{servers: servers, cache: cache, asking: make(chan struct{}, maxAsking), waiting: make(chan struct{}, maxWaiting)}
}

// ask asks the servers in order until one answers: by the query's own protocol, and by TCP if the answer does not fit
// into a datagram. After SERVFAIL or REFUSED it asks the next server, and returns that answer only if no server has a
// better one. The answer has only the relevant records. It is shared between callers, who must not change it.
func (u *upstream) ask(query *dns.Msg, network string) (*dns.Msg, error) {
	select {
	case u.waiting <- struct{}{}:
		defer func() { <-u.waiting }()
	default:
		return nil, errTooMany
	}
	k := keyOf(query)
	answer, err, _ := u.flights.Do(fmt.Sprint(network, k), func() (any, error) {
		// An exchange may have ended after this query missed the cache and before it came here.
		if m := u.cache.get(k); m != nil {
			return m, nil
		}
		select {
		case u.asking <- struct{}{}:
			defer func() { <-u.asking }()
		default:
			return nil, errTooMany
		}
		ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
		defer cancel()
		m, err := u.askAll(ctx, query, network)
		if err == nil {
			u.cache.put(k, m)
		}
		return m, err
	})
	if err != nil {
		return nil, err
	}
	return answer.(*dns.Msg), nil
}

func (u *upstream) askAll(ctx context.Context, query *dns.Msg, network string) (*dns.Msg, error) {
	last, failed := errNoServer, (*dns.Msg)(nil)
	for _, server := range u.servers {
		answer, err := exchange(ctx, query, network, server)
		switch {
		case err != nil:
			last = fmt.Errorf("ask %s: %w", server, err)
		case answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused:
			failed = relevant(query.Question[0], answer)
		default:
			return relevant(query.Question[0], answer), nil
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

// exchange asks one server. By UDP it chooses the case of each letter of the name at random, and the answer must repeat
// it (draft-vixie-dnsext-dns0x20). So a forger must guess the letters besides the random id and port. exchange asks by
// TCP if the answer does not repeat the letters or does not fit, or if too many other datagrams arrive.
func exchange(ctx context.Context, query *dns.Msg, network, server string) (*dns.Msg, error) {
	if network == networkUDP {
		answer, err := exchangeUDP(ctx, question(query, mixed(query.Question[0].Name)), server)
		if err == nil && !answer.Truncated || err != nil && !errors.Is(err, errSpelling) && !errors.Is(err, errStray) {
			return answer, err
		}
	}
	asked := question(query, query.Question[0].Name)
	client := &dns.Client{Net: networkTCP, Timeout: askTimeout}
	answer, _, err := client.ExchangeContext(ctx, asked, server)
	if err != nil {
		return nil, err
	}
	if !answers(answer, asked, strings.EqualFold) {
		return nil, errors.New("the answer by TCP is one to another question")
	}
	return answer, nil
}

// question makes the upstream question for a query, with the name spelt as given. It leaves out the query's EDNS
// options, which may describe the client.
func question(query *dns.Msg, name string) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, query.Question[0].Qtype) // the id comes from crypto/rand
	m.Question[0].Qclass = query.Question[0].Qclass
	m.CheckingDisabled, m.AuthenticatedData = query.CheckingDisabled, query.AuthenticatedData
	if opt := query.IsEdns0(); opt != nil {
		m.SetEdns0(udpSize, opt.Do())
	}
	return m
}

// mixed returns a name with the case of each letter at random.
func mixed(name string) string {
	letters := []byte(name)
	random := make([]byte, len(letters))
	_, _ = rand.Read(random) // never fails
	for i, c := range letters {
		if lower := c | 0x20; lower >= 'a' && lower <= 'z' && (i == 0 || letters[i-1] != '\\') {
			letters[i] = lower ^ random[i]&0x20
		}
	}
	return string(letters)
}

// exchangeUDP asks on a new connected socket, so that the kernel drops datagrams of other senders. It ignores datagrams
// that do not answer the question, up to maxStray.
func exchangeUDP(ctx context.Context, asked *dns.Msg, server string) (*dns.Msg, error) {
	raw, err := asked.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, networkUDP, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline := time.Now().Add(askTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := conn.Write(raw); err != nil {
		return nil, err
	}
	buffer := make([]byte, dns.DefaultMsgSize)
	for range maxStray {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		answer := new(dns.Msg)
		if answer.Unpack(buffer[:n]) != nil || answer.Id != asked.Id {
			continue
		}
		switch {
		case answers(answer, asked, func(a, b string) bool { return a == b }):
			return answer, nil
		case answers(answer, asked, strings.EqualFold) || answer.Response && len(answer.Question) == 0:
			return nil, errSpelling
		}
	}
	return nil, errStray
}

// answers reports whether a message answers the question; same compares the names.
func answers(answer, asked *dns.Msg, same func(a, b string) bool) bool {
	if !answer.Response || answer.Id != asked.Id || answer.Opcode != dns.OpcodeQuery || len(answer.Question) != 1 {
		return false
	}
	a, q := answer.Question[0], asked.Question[0]
	return same(a.Name, q.Name) && a.Qtype == q.Qtype && a.Qclass == q.Qclass
}
