package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/runner"
)

// firstVIP is the address of the first Service besides Kubernetes' own, range6 has the other addresses of Services of
// two families.
var (
	firstVIP = netip.MustParseAddr("198.19.0.2")
	range6   = netip.MustParsePrefix("fd19::/64")
)

// slowAck is how long acknowledgements may take without a remark.
const slowAck = 2 * time.Second

// Refused is the error of an object that validation has refused; nothing was changed.
type Refused struct {
	Text string
	// Kubernetes is true if the API server has refused it itself, in its own words, before ours was asked.
	Kubernetes bool
}

// Error implements error.
func (r *Refused) Error() string { return "refused: " + r.Text }

// Is tells that r is runner.ErrRefused, and runner.ErrKubernetes where that holds.
func (r *Refused) Is(target error) bool {
	return target == runner.ErrRefused || r.Kubernetes && target == runner.ErrKubernetes
}

// writer brings objects to config-watcher. held are those that there are before, by reference.
type writer interface {
	// write creates or replaces objects and returns the revision that has them, 0 if nothing changed. read tells which
	// of them can be removed again.
	write(ctx context.Context, docs []document, held map[string]document) (revision uint64, read func(document) bool, err error)
	// remove removes objects, each named Kind/namespace/name.
	remove(ctx context.Context, refs []string, held map[string]document) error
}

// store writes objects to config-watcher, and knows what it has written.
type store struct {
	conn   *grpc.ClientConn
	writer writer
	fleet  configv1.FleetServiceClient

	mu sync.Mutex
	// applied has the text of every object by its reference.
	applied map[string]document
	// vips are the addresses given to Services, by reference, for good.
	vips map[string]netip.Addr
	next netip.Addr
	ipv6 bool
	// onDemand is the fleet's option.
	onDemand bool
	// filters are the texts of EnvoyFilters that were applied since patchedWith was called last.
	filters []string

	// balanced is what the network was told to translate last.
	balanced  map[netip.AddrPort][]netip.AddrPort
	translate func(map[netip.AddrPort][]netip.AddrPort) error

	log func(format string, args ...any)
}

// watcher is where config-watcher answers, and who may ask.
type watcher struct {
	// grpc is the address of its API, ops that of its pages, which need no TLS there.
	grpc, ops string
	id        spiffeid.ID
	rootFile  string
	tokenFile string
	// from is the machine that asks.
	from *netns.Host
}

func newStore(h *Harness, at watcher) (*store, error) {
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: at.grpc, TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: at.rootFile}), at.id),
		TokenFile: at.tokenFile, MaxBackoff: 200 * time.Millisecond,
	}, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return at.from.Dial(ctx, "tcp", address, "")
	}))
	if err != nil {
		return nil, err
	}
	objects := configv1.NewConfigStoreServiceClient(conn)
	var to writer = configAPI{objects}
	if h.options.API != nil {
		if to, err = newKubernetes(h.options.API, objects, at); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	translate := func(map[netip.AddrPort][]netip.AddrPort) error { return nil } // kube-proxy does
	if h.network != nil {
		translate = h.network.Translate
	}
	return &store{
		conn: conn, writer: to, fleet: configv1.NewFleetServiceClient(conn),
		applied: map[string]document{}, vips: map[string]netip.Addr{}, next: firstVIP, ipv6: h.options.IPv6, onDemand: h.options.OnDemand,
		log: h.log, translate: translate,
	}, nil
}

func (s *store) close() error { return s.conn.Close() }

// vip is the address of a Service, by name.namespace, whether it is there yet or not.
func (s *store) vip(service string) (string, error) {
	name, namespace, ok := strings.Cut(service, ".")
	if !ok {
		return "", fmt.Errorf("service %q: want NAME.NAMESPACE", service)
	}
	namespace, _, _ = strings.Cut(namespace, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ref("Service", namespace, name)
	if doc, ok := s.applied[key]; ok {
		if ip := doc.member("spec", "clusterIP"); ip != "" && ip != "None" {
			return ip, nil
		}
		return "", fmt.Errorf("service %q has no address of its own", service)
	}
	return s.allot(key).String(), nil
}

// allot gives a Service an address; the caller holds s.mu.
func (s *store) allot(key string) netip.Addr {
	if _, ok := s.vips[key]; !ok {
		s.vips[key] = s.next
		s.next = s.next.Next()
	}
	return s.vips[key]
}

// clusterIPs are the addresses that a Service without any is given: one of each family that it asks for, as far as
// there are any. The caller holds s.mu.
func (s *store) clusterIPs(d document) []string {
	v4 := s.allot(d.ref())
	raw := range6.Addr().As16()
	for i, b := range v4.As4() {
		raw[12+i] = b
	}
	both := map[string]string{"IPv4": v4.String(), "IPv6": netip.AddrFrom16(raw).String()}
	families := []string{"IPv4"}
	if asked := d.list("spec", "ipFamilies"); len(asked) > 0 {
		families = nil
		for _, f := range asked {
			families = append(families, fmt.Sprint(f))
		}
	}
	if policy := d.member("spec", "ipFamilyPolicy"); len(families) == 1 && (policy == "PreferDualStack" || policy == "RequireDualStack") {
		families = append(families, map[string]string{"IPv4": "IPv6", "IPv6": "IPv4"}[families[0]])
	}
	var out []string
	for _, f := range families {
		if ip := both[f]; ip != "" && (f == "IPv4" || s.ipv6) {
			out = append(out, ip)
		}
	}
	if len(out) == 0 {
		return []string{v4.String()}
	}
	return out
}

// apply creates or replaces objects and returns the revision that has them, 0 if nothing changed.
func (s *store) apply(ctx context.Context, text string) (uint64, error) {
	docs := splitDocuments(text)
	s.mu.Lock()
	for i := range docs {
		var err error
		if docs[i].ref() == ref("ConfigMap", format.RootNamespace, meshObject) {
			if docs[i], err = docs[i].completed(s.onDemand); err != nil {
				s.mu.Unlock()
				return 0, err
			}
		}
		if docs[i].wantsClusterIP() {
			if docs[i], err = docs[i].withClusterIPs(s.clusterIPs(docs[i])); err != nil {
				s.mu.Unlock()
				return 0, err
			}
		}
	}
	held := maps.Clone(s.applied)
	s.mu.Unlock()
	revision, read, err := s.writer.write(ctx, docs, held)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range docs {
		if read(d) { // what is nothing to the mesh, such as a Deployment, cannot be taken back either
			s.applied[d.ref()] = d
		}
		if d.kind() == "EnvoyFilter" {
			s.filters = append(s.filters, d.text)
		}
	}
	return revision, s.rebalance()
}

// rebalance tells the network where Services lead to now. The caller holds s.mu.
func (s *store) rebalance() error {
	to := s.balance()
	if maps.EqualFunc(to, s.balanced, slices.Equal) {
		return nil
	}
	s.balanced = to
	return s.translate(to)
}

// delete removes objects.
func (s *store) delete(ctx context.Context, refs []string) error {
	if len(refs) == 0 {
		return nil
	}
	if err := s.writer.remove(ctx, refs, s.snapshot()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range refs {
		kind, namespace, object, _ := parseRef(name) // the writer has refused others
		delete(s.applied, ref(kind, namespace, object))
	}
	return s.rebalance()
}

// restore makes the objects what they were; it reports whether there was anything to do.
func (s *store) restore(ctx context.Context, want map[string]document) (bool, error) {
	s.mu.Lock()
	have := maps.Clone(s.applied)
	s.mu.Unlock()
	var gone, back []string
	for name := range have {
		if _, ok := want[name]; !ok {
			gone = append(gone, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if doc, ok := have[name]; !ok || doc.text != want[name].text {
			back = append(back, want[name].text)
		}
	}
	err := s.delete(ctx, gone)
	if len(back) > 0 {
		_, applied := s.apply(ctx, strings.Join(back, "\n---\n"))
		err = errors.Join(err, applied)
	}
	return len(gone)+len(back) > 0, err
}

func (s *store) snapshot() map[string]document {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.applied)
}

// acked waits until every connected proxy has acknowledged a revision, the newest if it is 0.
func (s *store) acked(ctx context.Context, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, ackedWithin)
	defer cancel()
	began := time.Now()
	for {
		pending, err := s.ackedSoon(ctx, revision)
		switch {
		case err != nil:
			return err
		case len(pending) == 0:
			return nil
		case time.Since(began) > ackedWithin-time.Second:
			return fmt.Errorf("after %s, these proxies have not acknowledged the change: %s", since(began), strings.Join(pending, ", "))
		}
		s.log("for %s, waiting for acknowledgements of %s", since(began), strings.Join(pending, ", "))
	}
}

// ackedSoon waits a little, and lists the proxies that have not acknowledged by then.
func (s *store) ackedSoon(ctx context.Context, revision uint64) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, slowAck)
	defer cancel()
	resp, err := s.fleet.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: revision}, grpc.WaitForReady(true))
	if err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			return []string{"config-watcher"}, nil
		}
		return nil, fmt.Errorf("wait for the proxies: %w", explain(err))
	}
	for _, p := range resp.Rejected {
		for _, t := range p.Types {
			if r := t.GetRejection(); r != nil && !leftOut.MatchString(r.Message) {
				return nil, fmt.Errorf("%s has rejected %s %v: %s", p.NodeId, t.TypeUrl, r.ResourceNames, r.Message)
			}
		}
	}
	if len(resp.Rejected) > 0 && len(resp.Pending) > 0 {
		// Without waiting: config-watcher answers at once that something was left out.
		select {
		case <-time.After(leftOutPause):
		case <-ctx.Done():
		}
	}
	return resp.Pending, nil
}

// leftOut is what is reported of an EnvoyFilter that would break a resource: the proxies have all else, and were sent
// nothing to reject.
var leftOut = regexp.MustCompile(`^xds-server could not build it: EnvoyFilter \S+ is left out: `)

const leftOutPause = 50 * time.Millisecond

// explain turns a gRPC error into one for people.
func explain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch st.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return &Refused{Text: st.Message()}
	}
	return fmt.Errorf("config-watcher: %s: %s", st.Code(), st.Message())
}
