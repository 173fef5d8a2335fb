package fleet

import (
	"context"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const (
	// askEvery and restEvery are how often the other replicas are asked, while somebody waits for an answer and
	// otherwise.
	askEvery  = time.Second
	restEvery = 5 * time.Second
	// answerTimeout bounds one question.
	answerTimeout = 2 * time.Second
)

// Peers follows the proxies that report to the other replicas of config-watcher: each xds-server reports to one
// replica. It is safe for concurrent use.
type Peers struct {
	peers *rpc.Peers
	clock clock.Clock

	mu sync.Mutex
	// asked is set after the first round.
	asked   bool
	answers map[string]answered
}

// answered is the last answer of a replica.
type answered struct {
	proxies []View
	// registering are those that want to be registered.
	registering Registering
	// at is when it came; before the first answer, when the replica was first asked.
	at time.Time
	// none is true before the first answer.
	none bool
}

// NewPeers returns peers; Run asks them.
func NewPeers(peers *rpc.Peers, c clock.Clock) *Peers {
	return &Peers{peers: peers, clock: c, answers: map[string]answered{}}
}

// Run asks the replicas until ctx ends. awaited reports whether somebody waits for what proxies acknowledge.
func (p *Peers) Run(ctx context.Context, awaited func() bool) error {
	defer p.peers.Close()
	last := time.Time{}
	for {
		if now := p.clock.Now(); awaited() || now.Sub(last) >= restEvery {
			last = now
			p.ask(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.clock.After(askEvery):
		}
	}
}

func (p *Peers) ask(ctx context.Context) {
	conns := p.peers.Conns(ctx)
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var mu sync.Mutex
	answers := map[string]answered{}
	var wg sync.WaitGroup
	for address, conn := range conns {
		wg.Go(func() {
			res, err := configv1.NewFleetServiceClient(conn).ListProxies(ctx, &configv1.ListProxiesRequest{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				p.mu.Lock()
				before, known := p.answers[address]
				p.mu.Unlock()
				if !known {
					before = answered{at: p.clock.Now(), none: true}
				}
				answers[address] = before
				return
			}
			a := answered{at: p.clock.Now(), registering: Registering{Reporters: int(res.GetReporters()), Unsettled: res.GetUnsettled()}}
			for _, status := range res.GetProxies() {
				v := View{Status: status, Acked: status.GetAcked(), Reported: true}
				if !status.GetUnverified() {
					a.proxies = append(a.proxies, v)
				}
				if status.GetRegistration() != nil {
					a.registering.Proxies = append(a.registering.Proxies, v)
				}
			}
			answers[address] = a
		})
	}
	wg.Wait()
	p.mu.Lock()
	p.answers, p.asked = answers, true
	p.mu.Unlock()
}

// Verified returns the proxies of the other replicas, as Table.Verified does. What a replica that does not answer has
// said counts for LostServerGrace, in which its xds-servers turn to another one.
func (p *Peers) Verified() (proxies []View, incomplete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for _, a := range p.answers {
		if now.Sub(a.at) >= LostServerGrace {
			continue
		}
		proxies = append(proxies, a.proxies...)
		incomplete = incomplete || a.none
	}
	return proxies, incomplete || !p.asked
}

// Registering returns the proxies of the other replicas that want to be registered, as Table.Registering does.
func (p *Peers) Registering() (r Registering) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	r.Unsettled = !p.asked
	for _, a := range p.answers {
		late := now.Sub(a.at) > askEvery+answerTimeout
		r.Unsettled = r.Unsettled || a.none || a.registering.Unsettled || late
		if now.Sub(a.at) < LostServerGrace {
			r.Proxies = append(r.Proxies, a.registering.Proxies...)
			r.Reporters += a.registering.Reporters
		}
	}
	return r
}
