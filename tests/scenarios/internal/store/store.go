// Package store has the objects of a fleet: it writes them to config-watcher's own store or to an API server, knows
// what it has written, and does of Kubernetes' work what depends on them alone, the addresses of Services and their
// names.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/document"
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

// Limits.
const (
	// readWithin is how long config-watcher may take to read what an API server has.
	readWithin = time.Minute
	// AckedWithin is how long the proxies may take to acknowledge a change.
	AckedWithin = 10 * time.Second
	// often is how long to rest between two looks at something that will come.
	often = 10 * time.Millisecond
)

// set has documents by reference.
type set = map[string]document.Document

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
	write(ctx context.Context, docs []document.Document, held set) (
		revision uint64, read func(document.Document) bool, err error)
	// remove removes objects, each named Kind/namespace/name.
	remove(ctx context.Context, refs []string, held set) error
}

// Store writes objects to config-watcher, and knows what it has written.
type Store struct {
	Config
	conn   *grpc.ClientConn
	writer writer
	fleet  configv1.FleetServiceClient

	mu sync.Mutex
	// applied has every object by its reference.
	applied set
	// vips are the addresses given to Services, by reference, for good.
	vips map[string]netip.Addr
	// filters are the texts of EnvoyFilters that were applied since PatchedWith was called last.
	filters []string
	// balanced is what the network was told to translate last.
	balanced map[netip.AddrPort][]netip.AddrPort
}

// Config of a Store. Watcher, Complete and Log are required.
type Config struct {
	Watcher Watcher
	// API is the API server that config-watcher reads; nil if the objects go to config-watcher's own store.
	API *apiserver.Server
	// FirstVIP is the first address that Services are given, by default that after Kubernetes' own.
	FirstVIP netip.Addr
	IPv6     bool
	// Complete adds to mesh settings what the fleet needs besides.
	Complete func(document.Document) document.Document
	// Translate has the network lead from ports of Services to those of Pods; nil where Kubernetes does.
	Translate func(map[netip.AddrPort][]netip.AddrPort) error
	Log       func(format string, args ...any)
}

// Watcher is where config-watcher answers, and who may ask.
type Watcher struct {
	// GRPC is the address of its API, Ops that of its pages, which need no TLS there.
	GRPC, Ops string
	ID        spiffeid.ID
	RootFile  string
	TokenFile string
	// Dial connects from the machine that asks.
	Dial probe.Dial
}

// New connects to config-watcher.
func New(c Config) (*Store, error) {
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: c.Watcher.GRPC, TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: c.Watcher.RootFile}), c.Watcher.ID),
		TokenFile: c.Watcher.TokenFile, MaxBackoff: 200 * time.Millisecond,
	}, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return c.Watcher.Dial(ctx, "tcp", address)
	}))
	if err != nil {
		return nil, err
	}
	objects := configv1.NewConfigStoreServiceClient(conn)
	var to writer = configAPI{objects}
	if c.API != nil {
		if to, err = newKubernetes(c.API, objects, c.Watcher); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if !c.FirstVIP.IsValid() {
		c.FirstVIP = firstVIP
	}
	return &Store{
		Config: c, conn: conn, writer: to, fleet: configv1.NewFleetServiceClient(conn),
		applied: set{}, vips: map[string]netip.Addr{},
	}, nil
}

// Close ends the connection.
func (s *Store) Close() error { return s.conn.Close() }

// VIP is the address of a Service, by name.namespace, whether it is there yet or not.
func (s *Store) VIP(service string) (string, error) {
	name, namespace, ok := strings.Cut(service, ".")
	if !ok {
		return "", fmt.Errorf("service %q: want NAME.NAMESPACE", service)
	}
	namespace, _, _ = strings.Cut(namespace, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	key := document.Ref("Service", namespace, name)
	if doc, ok := s.applied[key]; ok {
		if ip := doc.Member("spec", "clusterIP"); ip != "" && ip != "None" {
			return ip, nil
		}
		return "", fmt.Errorf("service %q has no address of its own", service)
	}
	return s.allot(key).String(), nil
}

// allot gives a Service an address; the caller holds s.mu.
func (s *Store) allot(key string) netip.Addr {
	if _, ok := s.vips[key]; !ok {
		s.vips[key] = s.FirstVIP
		s.FirstVIP = s.FirstVIP.Next()
	}
	return s.vips[key]
}

// clusterIPs are the addresses that a Service without any is given: one of each family that it asks for, as far as
// there are any. The caller holds s.mu.
func (s *Store) clusterIPs(d document.Document) []string {
	v4 := s.allot(d.Ref())
	raw := range6.Addr().As16()
	for i, b := range v4.As4() {
		raw[12+i] = b
	}
	both := map[string]string{"IPv4": v4.String(), "IPv6": netip.AddrFrom16(raw).String()}
	families := []string{"IPv4"}
	if asked := d.List("spec", "ipFamilies"); len(asked) > 0 {
		families = nil
		for _, f := range asked {
			families = append(families, fmt.Sprint(f))
		}
	}
	if policy := d.Member("spec", "ipFamilyPolicy"); len(families) == 1 && (policy == "PreferDualStack" || policy == "RequireDualStack") {
		families = append(families, map[string]string{"IPv4": "IPv6", "IPv6": "IPv4"}[families[0]])
	}
	var out []string
	for _, f := range families {
		if ip := both[f]; ip != "" && (f == "IPv4" || s.IPv6) {
			out = append(out, ip)
		}
	}
	if len(out) == 0 {
		return []string{v4.String()}
	}
	return out
}

// Apply creates or replaces objects and returns the revision that has them, 0 if nothing changed. An object that is
// refused is a *Refused.
func (s *Store) Apply(ctx context.Context, text string) (uint64, error) {
	docs := document.Split(text)
	s.mu.Lock()
	for i, d := range docs {
		if d.Ref() == document.Ref("ConfigMap", format.RootNamespace, document.MeshObject) {
			docs[i] = s.Complete(d)
		} else if d.WantsClusterIP() {
			docs[i] = d.WithClusterIPs(s.clusterIPs(d))
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
			s.applied[d.Ref()] = d
		}
		if d.Kind() == "EnvoyFilter" {
			s.filters = append(s.filters, d.Text)
		}
	}
	return revision, s.rebalance()
}

// Knows notes an object that somebody else has written.
func (s *Store) Knows(d document.Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied[d.Ref()] = d
}

// rebalance tells the network where Services lead to now. The caller holds s.mu.
func (s *Store) rebalance() error {
	to := s.balance()
	if maps.EqualFunc(to, s.balanced, slices.Equal) {
		return nil
	}
	s.balanced = to
	if s.Translate == nil {
		return nil
	}
	return s.Translate(to)
}

// Delete removes objects.
func (s *Store) Delete(ctx context.Context, refs []string) error {
	if len(refs) == 0 {
		return nil
	}
	if err := s.writer.remove(ctx, refs, s.Snapshot()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range refs {
		kind, namespace, object, _ := document.ParseRef(name) // the writer has refused others
		delete(s.applied, document.Ref(kind, namespace, object))
	}
	return s.rebalance()
}

// Restore makes the objects what they were at a Snapshot.
func (s *Store) Restore(ctx context.Context, want set) error {
	have := s.Snapshot()
	var gone, back []string
	for name := range have {
		if _, ok := want[name]; !ok {
			gone = append(gone, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if doc, ok := have[name]; !ok || doc.Text != want[name].Text {
			back = append(back, want[name].Text)
		}
	}
	err := s.Delete(ctx, gone)
	if len(back) > 0 {
		_, applied := s.Apply(ctx, strings.Join(back, "\n---\n"))
		err = errors.Join(err, applied)
	}
	return err
}

// Snapshot has the objects that there are, by reference.
func (s *Store) Snapshot() set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.applied)
}

// PatchedWith has the texts of the EnvoyFilters that were applied since it was asked last.
func (s *Store) PatchedWith() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.filters, "\n")
	s.filters = nil
	return all
}
