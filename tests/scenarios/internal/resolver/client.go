// Package resolver is the DNS of a scenario: a server that knows the cluster's Services and the names outside, and a
// client that looks names up as a Pod does.
package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// ndots is what a Pod's resolv.conf says: with fewer dots than this, a name is first looked for in the search domains.
const ndots = 5

// wait is how long a query waits for its answer before it is sent again, and tries how often it is sent.
const (
	wait  = time.Second
	tries = 3
)

// Search are the search domains of a Pod.
func Search(namespace, domain string) []string {
	return []string{namespace + ".svc." + domain, "svc." + domain, domain}
}

// Client looks names up. It is safe for concurrent use.
type Client struct {
	// Server is IP:port; empty if there is none.
	Server string
	Search []string
	// Dial opens the sockets.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// ErrName is wrapped by the error for a name that has no address.
var ErrName = errors.New("no such name")

var errAnswer = errors.New("the name server answers")

// Lookup has the addresses of a name, IPv4 before IPv6, each kind in the order of the answer.
func (c *Client) Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{ip}, nil
	}
	if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	if c.Server == "" {
		return nil, fmt.Errorf("%w: %s, and there is no name server to ask", ErrName, name)
	}
	for _, candidate := range c.candidates(name) {
		found, err := c.both(ctx, candidate)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", candidate, err)
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrName, name)
}

func (c *Client) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var searched []string
	for _, domain := range c.Search {
		searched = append(searched, name+"."+domain+".")
	}
	if strings.Count(name, ".") >= ndots {
		return append([]string{name + "."}, searched...)
	}
	return append(searched, name+".")
}

func (c *Client) both(ctx context.Context, name string) ([]netip.Addr, error) {
	conn, err := c.Dial(ctx, "udp", c.Server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var all []netip.Addr
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		found, exists, err := c.ask(ctx, conn, name, kind)
		if err != nil || !exists {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// ask sends one question; exists is false if the name does not exist at all.
func (c *Client) ask(ctx context.Context, conn net.Conn, name string, kind uint16) (found []netip.Addr, exists bool, err error) {
	query := new(dns.Msg).SetQuestion(name, kind)
	query.SetEdns0(dns.DefaultMsgSize, false)
	var answer *dns.Msg
	for range tries {
		if answer, err = exchange(ctx, conn, query); !isTimeout(err) || ctx.Err() != nil {
			break
		}
	}
	if err == nil && answer.Truncated {
		answer, err = c.overTCP(ctx, query)
	}
	if err != nil {
		return nil, false, err
	}
	switch answer.Rcode {
	case dns.RcodeSuccess:
	case dns.RcodeNameError:
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("%w %s", errAnswer, dns.RcodeToString[answer.Rcode])
	}
	for _, rr := range answer.Answer {
		var ip net.IP
		switch r := rr.(type) {
		case *dns.A:
			ip = r.A
		case *dns.AAAA:
			ip = r.AAAA
		default:
			continue
		}
		if at, ok := netip.AddrFromSlice(ip); ok {
			found = append(found, at.Unmap())
		}
	}
	return found, true, nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func exchange(ctx context.Context, conn net.Conn, query *dns.Msg) (*dns.Msg, error) {
	until := time.Now().Add(wait)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	if err := conn.SetDeadline(until); err != nil {
		return nil, err
	}
	messages := &dns.Conn{Conn: conn, UDPSize: dns.DefaultMsgSize}
	if err := messages.WriteMsg(query); err != nil {
		return nil, err
	}
	for {
		answer, err := messages.ReadMsg()
		if err != nil || answer.Id == query.Id {
			return answer, err
		}
	}
}

func (c *Client) overTCP(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	conn, err := c.Dial(ctx, "tcp", c.Server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return exchange(ctx, conn, query)
}

// DialName looks up host:port and connects to the first of its addresses that answers.
func (c *Client) DialName(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ips, err := c.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var last error
	for _, ip := range ips {
		conn, err := c.Dial(ctx, network, net.JoinHostPort(ip.String(), port))
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, cmp.Or(last, fmt.Errorf("%w: %s", ErrName, host))
}

// Sorted is the addresses as text in order.
func Sorted(ips []netip.Addr) []string {
	all := make([]string, len(ips))
	for i, ip := range slices.SortedFunc(slices.Values(ips), netip.Addr.Compare) {
		all[i] = ip.String()
	}
	return all
}
