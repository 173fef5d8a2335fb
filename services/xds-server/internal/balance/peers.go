package balance

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
)

const (
	// answerTimeout bounds the lookup of the peers, and then the calls to them.
	answerTimeout = time.Second
	// maxAnswerBytes bounds one answer: an instance and three numbers.
	maxAnswerBytes = 4 << 10
	// maxPeers bounds how many addresses are asked.
	maxPeers = 128
)

// peers asks the replicas for their load. It is for one goroutine.
type peers struct {
	cfg Config
	// found is what names last resolved to, by host:port as configured.
	found map[string][]string
	// conns are kept from round to round, by address.
	conns map[string]*grpc.ClientConn
}

func newPeers(cfg Config) *peers {
	return &peers{cfg: cfg, found: map[string][]string{}, conns: map[string]*grpc.ClientConn{}}
}

// ask returns the answers that came in time, in no order.
func (p *peers) ask(ctx context.Context) []Load {
	p.connect(p.addresses(ctx))
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var mu sync.Mutex
	var answers []Load
	var wg sync.WaitGroup
	for address, conn := range p.conns {
		wg.Go(func() {
			m, err := xdsv1.NewReplicaServiceClient(conn).GetLoad(ctx, &xdsv1.GetLoadRequest{})
			if err != nil {
				p.cfg.Log.Debug("no load from a replica", "address", address, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, Load{
				Instance: m.GetInstance(), Streams: int(m.GetStreams()), InTransit: int(m.GetInTransit()), Ready: m.GetReady(),
			})
		})
	}
	wg.Wait()
	return answers
}

// addresses resolves the names again. A name that does not resolve stands for its last addresses.
func (p *peers) addresses(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var all []string
	for _, hostport := range p.cfg.Peers {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil || net.ParseIP(host) != nil {
			all = append(all, hostport)
			continue
		}
		hosts, err := p.cfg.Resolver.LookupHost(ctx, host)
		if err == nil {
			found := make([]string, 0, len(hosts))
			for _, h := range hosts {
				found = append(found, net.JoinHostPort(h, port))
			}
			p.found[hostport] = found
		} else {
			p.cfg.Log.Debug("replicas not found", "name", host, "error", err)
		}
		all = append(all, p.found[hostport]...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxPeers)]
}

// connect opens and closes connections until conns has exactly these addresses.
func (p *peers) connect(addresses []string) {
	for address, conn := range p.conns {
		if !slices.Contains(addresses, address) {
			_ = conn.Close() // the replica is gone
			delete(p.conns, address)
		}
	}
	for _, address := range addresses {
		if p.conns[address] != nil {
			continue
		}
		conn, err := rpc.Dial(rpc.ClientConfig{Target: address, TLS: p.cfg.TLS, Insecure: p.cfg.Insecure, MaxRecvBytes: maxAnswerBytes})
		if err != nil {
			p.cfg.Log.Debug("no connection to a replica", "address", address, "error", err)
			continue
		}
		p.conns[address] = conn
	}
}

func (p *peers) close() { p.connect(nil) }
