package relay

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/lists"
)

const (
	// resolveTimeout bounds one DNS look-up.
	resolveTimeout = 2 * time.Second
	// avoidFor is how long an xds-server that failed is tried after the others.
	avoidFor = 30 * time.Second
	// maxAddresses bounds what one name may resolve to.
	maxAddresses = 64
)

// resolver looks names up; net.DefaultResolver is one.
type resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// addresses holds the configured xds-servers and which of them failed lately. It is safe for concurrent use.
type addresses struct {
	configured []string
	resolver   resolver

	mu     sync.Mutex
	failed map[string]time.Time
}

func newAddresses(configured []string, r resolver) *addresses {
	return &addresses{configured: configured, resolver: r, failed: map[string]time.Time{}}
}

// candidates resolves every name and returns host:port in the order to try: first, in random order, those that have not
// failed within avoidFor, then the others by time of failure, oldest first. A name that does not resolve stays, so that
// the attempt to connect reports why.
func (a *addresses) candidates(ctx context.Context, now time.Time) []string {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	resolved := make([][]string, len(a.configured))
	var wg sync.WaitGroup
	for i, hostport := range a.configured {
		wg.Go(func() { resolved[i] = a.resolve(ctx, hostport) })
	}
	wg.Wait()
	all := slices.Concat(resolved...)
	slices.Sort(all)
	all = slices.Compact(all)

	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, at := range a.failed {
		if now.Sub(at) >= avoidFor {
			delete(a.failed, addr)
		}
	}
	return order(all, a.failed, rand.Shuffle)
}

func (a *addresses) resolve(ctx context.Context, hostport string) []string {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil || net.ParseIP(host) != nil {
		return []string{hostport}
	}
	hosts, err := a.resolver.LookupHost(ctx, host)
	if err != nil || len(hosts) == 0 {
		return []string{hostport}
	}
	return lists.Map(hosts[:min(len(hosts), maxAddresses)], func(h string) string { return net.JoinHostPort(h, port) })
}

// order sorts addresses as candidates documents.
func order(all []string, failed map[string]time.Time, shuffle func(int, func(i, j int))) []string {
	all = slices.Clone(all)
	shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(x, y string) int { return failed[x].Compare(failed[y]) })
	return all
}

func (a *addresses) markFailed(addr string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed[addr] = now
}
