package suite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/tests/bench/internal/kube"
)

// A storm changes endpoints through the API faster than one after another is acknowledged.
const (
	// stormPerSecond endpoints change, stormPerWrite of them with each write of an EndpointSlice, as when a Deployment
	// of ten Pods is rolled out.
	stormPerSecond = 1000
	stormPerWrite  = 5
	// Of so many writes one is about a Service that all proxies see.
	stormShared = 10
	// stormWriters write at the same time; an EndpointSlice is always of the same one.
	stormWriters = 8
	// stormEnds is how long the last of it may take.
	stormEnds = 30 * time.Second
)

// storm notes when proxies acknowledge what was written. seen locks it.
type storm struct {
	sees func(number int, host string) bool
	// written are the writes of a host, in order, by the number of their first marked address.
	written map[string][]write
	// next is, of each proxy, the number of the first write of a host that it has not acknowledged.
	next   []map[string]int
	delays []time.Duration
	writes int
	due    int
}

type write struct {
	number int
	at     time.Time
}

func (s *storm) acknowledged(proxy int, host string, newest int, at time.Time) {
	writes, i := s.written[host], s.next[proxy][host]
	for ; i < len(writes) && writes[i].number <= newest; i++ {
		s.delays = append(s.delays, at.Sub(writes[i].at))
	}
	s.next[proxy][host] = i
}

// stormResult is what a storm showed.
type stormResult struct {
	// perSecond endpoints changed, delays are those of all pairs of a write and a proxy, unacknowledged such pairs are
	// left, cpu is the share of a core.
	perSecond      float64
	delays         []time.Duration
	unacknowledged int
	cpu            float64
	// different are endpoints of Services that proxies have otherwise than the API at the end.
	different int
	example   string
}

// weather runs a storm.
func (b *beside) weather(ctx context.Context, c *contender, lasts time.Duration) (*stormResult, error) {
	s := &storm{sees: b.sees, written: map[string][]write{}, next: make([]map[string]int, b.spec.Proxies)}
	for i := range s.next {
		s.next[i] = map[string]int{}
	}
	c.seen.mu.Lock()
	c.seen.storm = s
	c.seen.mu.Unlock()
	began, used := time.Now(), c.CPU()
	if err := b.write(ctx, c.seen, s, int(lasts.Seconds()*stormPerSecond/stormPerWrite)); err != nil {
		return nil, err
	}
	took := time.Since(began)
	out := &stormResult{perSecond: float64(s.writes*stormPerWrite) / took.Seconds(), cpu: (c.CPU() - used).Seconds() / took.Seconds()}
	api, err := b.endpoints(ctx)
	if err != nil {
		return nil, err
	}
	for late := time.Now(); ; time.Sleep(quietFor) {
		if err := c.fleet.Err(); err != nil {
			return nil, err
		}
		out.different, out.example = c.seen.differing(api, b.sees)
		c.seen.mu.Lock()
		out.delays, out.unacknowledged = s.delays, s.due-len(s.delays)
		c.seen.mu.Unlock()
		if out.different == 0 && out.unacknowledged == 0 || time.Since(late) > stormEnds || ctx.Err() != nil {
			break
		}
	}
	c.seen.mu.Lock()
	c.seen.storm = nil
	c.seen.mu.Unlock()
	return out, ctx.Err()
}

// job is one write: service i of namespace n, from an address on.
type job struct{ n, i, number int }

// write writes so many EndpointSlices at the storm's pace, or as fast as the API server takes them.
func (b *beside) write(ctx context.Context, seen *seen, s *storm, writes int) error {
	queues, failed := make([]chan job, stormWriters), make(chan error, stormWriters)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for w := range queues {
		queues[w] = make(chan job, 4)
		all.Go(func() {
			for j := range queues[w] {
				if err := b.writeOne(ctx, seen, s, j); err != nil {
					failed <- err
					cancel()
					return
				}
			}
		})
	}
	began := time.Now()
	for k := 0; k < writes && ctx.Err() == nil; k++ {
		// The first Service of a namespace has Pods, whose addresses stay.
		j := job{number: b.number, i: 1 + k/stormShared%(kube.PerNamespace-1)}
		if k%stormShared != 0 {
			j.n, j.i = 1+k%(b.spec.Namespaces-1), 1+k/(b.spec.Namespaces-1)%(kube.PerNamespace-1)
		}
		b.number += stormPerWrite
		// What is late is made up for.
		time.Sleep(time.Until(began.Add(time.Duration(k) * time.Second * stormPerWrite / stormPerSecond)))
		select {
		case queues[(j.n*kube.PerNamespace+j.i)%stormWriters] <- j:
		case <-ctx.Done():
		}
	}
	for _, q := range queues {
		close(q)
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

func (b *beside) writeOne(ctx context.Context, seen *seen, s *storm, j job) error {
	var addresses []string
	for k := range stormPerWrite {
		addresses = append(addresses, markedAddress(j.number+k))
	}
	host, due := kube.Host(kube.ServiceName(j.i), kube.Namespace(j.n)), 0
	for number := range b.spec.Proxies {
		if b.sees(number, host) {
			due++
		}
	}
	// Before the write: its answer may come after a proxy's.
	seen.mu.Lock()
	s.written[host] = append(s.written[host], write{j.number, time.Now()})
	s.writes++
	s.due += due
	seen.mu.Unlock()
	_, err := b.api.Client.DiscoveryV1().EndpointSlices(kube.Namespace(j.n)).Update(ctx, kube.NewSlice(j.n, j.i, addresses...),
		metav1.UpdateOptions{})
	return err
}

// endpoints are those of all Services in the API, sorted, by host.
func (b *beside) endpoints(ctx context.Context) (map[string][]string, error) {
	list, err := b.api.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, slice := range list.Items {
		name := slice.Labels[discoveryv1.LabelServiceName]
		if name == "" {
			return nil, fmt.Errorf("EndpointSlice %s/%s is of no Service", slice.Namespace, slice.Name)
		}
		host := kube.Host(name, slice.Namespace)
		for _, e := range slice.Endpoints {
			out[host] = append(out[host], e.Addresses...)
		}
	}
	for _, addresses := range out {
		slices.Sort(addresses)
	}
	return out, nil
}
