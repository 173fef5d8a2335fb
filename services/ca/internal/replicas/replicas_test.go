package replicas

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/holders"
)

// fleet is some replicas in this process, which reach each other unless cut says otherwise.
type fleet struct {
	t     *testing.T
	clock *testkit.Clock
	made  int

	// restored says that the ca has issued before the first of them started. Otherwise those after the first find its
	// record.
	restored bool

	mu       sync.Mutex
	replicas map[string]*replica
	cut      map[string]bool
}

// replica is one, whose address is its name.
type replica struct {
	*Set
	name, dir string
	registry  *holders.Registry
	lis       *bufconn.Listener
	server    *grpc.Server
	stops     []func()
}

func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, clock: testkit.NewClock(start), replicas: map[string]*replica{}, cut: map[string]bool{}}
	for _, name := range names {
		f.start(name, filepath.Join(t.TempDir(), name))
	}
	return f
}

// peers are those of one replica.
type peers struct {
	f    *fleet
	name string
	// to has the connections, each with the process that it leads to.
	conns map[string]*grpc.ClientConn
	to    map[string]*replica
}

func (p *peers) Conns(context.Context) map[string]*grpc.ClientConn {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	for name, conn := range p.conns {
		if p.f.cut[p.name+name] || p.f.replicas[name] != p.to[name] {
			_ = conn.Close()
			delete(p.conns, name)
		}
	}
	for name, r := range p.f.replicas {
		if p.conns[name] == nil && !p.f.cut[p.name+name] {
			conn, err := grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.lis.DialContext(ctx) }))
			if err != nil {
				panic(err)
			}
			p.conns[name], p.to[name] = conn, r
		}
	}
	return p.conns
}

func (p *peers) Close() {
	for _, conn := range p.conns {
		_ = conn.Close()
	}
}

func (f *fleet) start(name, dir string) *replica {
	f.t.Helper()
	r := &replica{name: name, dir: dir, lis: bufconn.Listen(1 << 20), server: grpc.NewServer()}
	r.registry = testkit.Must(holders.Open(holders.Config{
		Dir: dir, IssuedBefore: f.restored || len(f.replicas) > 0, Replicated: true, LongestTTL: ttl, Clock: f.clock,
		Log: testkit.Logger(f.t), Boot: "boot",
	}))(f.t)
	r.Set = testkit.Must(New(Config{
		Name: name, Registry: r.registry, Peers: &peers{f, name, map[string]*grpc.ClientConn{}, map[string]*replica{}},
		Own: func() Own { return Own{Signer: 1, RecordVersion: "v1"} }, LongestTTL: ttl, File: filepath.Join(dir, "replicas.json"),
		Clock: f.clock, Log: testkit.Logger(f.t),
	}))(f.t)
	cav1.RegisterReplicaServiceServer(r.server, r.Set)
	go func() { _ = r.server.Serve(r.lis) }()
	f.mu.Lock()
	f.replicas[name] = r
	f.mu.Unlock()
	r.stops = []func(){r.server.Stop, testkit.Background(f.t, r.Run), testkit.Background(f.t, r.registry.Run)}
	f.t.Cleanup(r.server.Stop)
	return r
}

// kill ends a replica, which another process in its directory follows before it can write anything more.
func (f *fleet) kill(name string) *replica {
	f.t.Helper()
	before := f.replicas[name]
	before.server.Stop()
	after := f.start(name, before.dir)
	for _, stop := range before.stops {
		stop()
	}
	return after
}

// eventually lets time pass until ok returns nil.
func (f *fleet) eventually(ok func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.clock.Advance(100 * time.Millisecond)
		return ok()
	})
}

func (f *fleet) issue(r *replica, change func(*holders.Certificate)) holders.Certificate {
	f.made++
	sum := sha256.Sum256(fmt.Append(nil, f.made))
	c := holders.Certificate{
		Fingerprint: holders.Fingerprint(sum[:16]), Serial: fmt.Sprintf("%x", sum[:6]), Identity: "spiffe://cluster.local/ns/default/sa/a",
		Signer: 1, Generation: 1, AuthorityKeyID: []byte("key-1"), NotAfter: f.clock.Now().Add(ttl), At: f.clock.Now(),
	}
	if change != nil {
		change(&c)
	}
	r.registry.Issued(c)
	return c
}

// certificates are the names of those behind, without what stands for unknown ones.
func (r *replica) certificates(generation uint64) []string {
	out := []string{}
	for _, h := range r.Behind(0, generation) {
		if !strings.HasPrefix(h.Name, "unknown ") {
			out = append(out, h.Name)
		}
	}
	return out
}

// agree waits until all replicas know each other, say that these many are behind, and have no problem.
func (f *fleet) agree(generation uint64, want int) {
	f.t.Helper()
	f.eventually(func() error {
		var first []string
		for name, r := range f.replicas {
			got := r.certificates(generation)
			if first == nil {
				first = got
			}
			if err := r.Problem(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if known := len(r.Replicas()); known != len(f.replicas) {
				return fmt.Errorf("%s knows %d replicas", name, known)
			}
			if len(got) != want || !slices.Equal(got, first) {
				return fmt.Errorf("%s: behind %d, want %d: %q, another %q", name, len(got), want, got, first)
			}
		}
		return nil
	})
}

func TestReplicasKnowEachOthersHolders(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1", "ca-2")
	a, b := f.replicas["ca-0"], f.replicas["ca-1"]
	one := f.issue(a, nil)
	f.issue(b, func(c *holders.Certificate) { c.Pod, c.PodUID = "default/web-0", "u0" })
	f.agree(2, 2)
	// A renewal at another replica than the one that issued, and acknowledgements at the third.
	f.issue(b, func(c *holders.Certificate) { c.Predecessor = one.Fingerprint })
	f.agree(2, 2)
	f.replicas["ca-2"].registry.Acked(0, 2, []holders.Fingerprint{one.Fingerprint}, []string{"u0"})
	f.agree(2, 0)
	f.agree(3, 2)
	got := a.Replicas()
	if len(got) != 3 || got[0].Name != "ca-0" || got[2].Name != "ca-2" || got[1].Signer != 1 || got[1].Problem != "" {
		t.Errorf("replicas %+v", got)
	}
	if versions := a.Versions(); len(versions) != 3 || versions["ca-2"] != "v1" {
		t.Errorf("versions %v", versions)
	}
}

func TestAReplicaWithoutItsJournalLearnsFromOthers(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1")
	for i := range 1000 {
		f.issue(f.replicas["ca-0"], func(c *holders.Certificate) { c.Pod, c.PodUID = fmt.Sprint("default/p-", i), fmt.Sprint("u", i) })
		if i%100 == 0 {
			f.clock.Advance(time.Second)
		}
	}
	f.agree(2, 1000)
	testkit.NoError(t, os.RemoveAll(f.replicas["ca-0"].dir))
	f.kill("ca-0")
	f.agree(2, 1000)
	// What it may have issued and told nobody, nobody knows.
	f.eventually(func() error {
		for name, r := range f.replicas {
			if until, _ := r.registry.Unknown(); until.IsZero() {
				return fmt.Errorf("%s misses nothing", name)
			}
		}
		return nil
	})
}

func TestANewReplicaHasLostNothing(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1")
	f.agree(2, 0)
	f.issue(f.replicas["ca-0"], nil)
	f.start("ca-2", filepath.Join(t.TempDir(), "ca-2"))
	f.agree(2, 1)
	f.kill("ca-2") // its journal says that it has asked
	f.agree(2, 1)
	for name, r := range f.replicas {
		if until, why := r.registry.Unknown(); !until.IsZero() {
			t.Errorf("%s: unknown until %s: %s", name, until, why)
		}
	}
}

func TestAReplicaThatIsAloneHasLostItsJournal(t *testing.T) {
	f := newFleet(t, "ca-0")
	testkit.NoError(t, os.RemoveAll(f.replicas["ca-0"].dir))
	f.kill("ca-0")
	f.eventually(func() error {
		if err := f.replicas["ca-0"].Problem(); err != nil {
			return err
		}
		if until, _ := f.replicas["ca-0"].registry.Unknown(); until.IsZero() {
			return errors.New("it misses nothing")
		}
		return nil
	})
}

// As after a restore, or when one ca with a volume is followed by several.
func TestReplicasThatAllHaveNoJournalDoNotBelieveEachOther(t *testing.T) {
	f := newFleet(t)
	f.restored = true
	for _, name := range []string{"ca-0", "ca-1", "ca-2"} {
		f.start(name, filepath.Join(t.TempDir(), name))
	}
	f.eventually(func() error {
		for name, r := range f.replicas {
			if until, _ := r.registry.Unknown(); until.IsZero() || r.registry.Unasked() {
				return fmt.Errorf("%s misses nothing", name)
			}
		}
		return nil
	})
}

func TestAPartitionIsNamedAndHeals(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1", "ca-2")
	a, b := f.replicas["ca-0"], f.replicas["ca-1"]
	f.agree(2, 0)
	f.mu.Lock()
	for _, pair := range []string{"ca-0ca-1", "ca-1ca-0", "ca-1ca-2", "ca-2ca-1"} {
		f.cut[pair] = true
	}
	f.mu.Unlock()
	f.eventually(func() error {
		for _, r := range []*replica{a, f.replicas["ca-2"]} {
			if err := r.Problem(); err == nil || !strings.Contains(err.Error(), "connection to replica ca-1 is lost") {
				return errors.Join(err, errors.New("not the lost connection"))
			}
		}
		return nil
	})
	f.issue(b, nil)
	f.eventually(func() error {
		if got := a.certificates(2); !slices.Equal(got, []string{"replica ca-1"}) {
			return fmt.Errorf("behind %q", got)
		}
		return a.Problem() // an operator can accept that it is away
	})
	f.mu.Lock()
	clear(f.cut)
	f.mu.Unlock()
	f.agree(2, 1)
}

// A replica that is away is known after a restart of all others.
func TestAReplicaThatIsAwayIsRemembered(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1")
	f.agree(2, 0)
	gone := f.replicas["ca-1"]
	f.mu.Lock()
	delete(f.replicas, "ca-1")
	f.mu.Unlock()
	for _, stop := range gone.stops {
		stop()
	}
	f.eventually(func() error {
		if _, err := os.Stat(filepath.Join(f.replicas["ca-0"].dir, "replicas.json")); err != nil {
			return err
		}
		return nil
	})
	a := f.kill("ca-0")
	f.eventually(func() error {
		if got := a.certificates(2); !slices.Equal(got, []string{"replica ca-1"}) {
			return fmt.Errorf("behind %q", got)
		}
		return a.Problem()
	})
}

func TestKillsAtAnyTimeLoseNothing(t *testing.T) {
	f := newFleet(t, "ca-0", "ca-1", "ca-2")
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"ca-0", "ca-1", "ca-2"}
	for i := range 300 {
		f.clock.Advance(10 * time.Millisecond)
		f.issue(f.replicas[names[random.IntN(3)]], func(c *holders.Certificate) {
			c.Pod, c.PodUID = fmt.Sprint("default/p-", i), fmt.Sprint("u", i)
		})
		if i%30 == 29 {
			f.kill(names[random.IntN(3)])
		}
	}
	f.agree(2, 300)
	for name, r := range f.replicas {
		if until, why := r.registry.Unknown(); !until.IsZero() && !strings.Contains(why, "no journal") {
			t.Errorf("%s: unknown until %s: %s", name, until, why)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	f := newFleet(t, "ca-0")
	long := strings.Repeat("x", 5000)
	for i := range 450 {
		f.issue(f.replicas["ca-0"], func(c *holders.Certificate) {
			c.Identity, c.Pod, c.PodUID = "spiffe://a/"+long[:1900]+fmt.Sprint(i), long, long+fmt.Sprint(i)
			c.AuthorityKeyID = []byte(long)
		})
	}
	conn := (&peers{f, "test", map[string]*grpc.ClientConn{}, map[string]*replica{}}).Conns(t.Context())["ca-0"]
	t.Cleanup(func() { _ = conn.Close() })
	stream := testkit.Must(cav1.NewReplicaServiceClient(conn).Exchange(t.Context(), &cav1.ExchangeRequest{Replica: "test", Run: "x"}))(t)
	total := 0
	for complete := false; !complete; {
		m := testkit.Must(stream.Recv())(t)
		total += len(m.GetCertificates())
		complete = m.GetComplete()
		if size := len(m.String()); len(m.GetCertificates()) > maxCertificates || size > 1<<20 {
			t.Errorf("%d certificates, %d bytes", len(m.GetCertificates()), size)
		}
	}
	if total != 450 {
		t.Errorf("%d certificates", total)
	}
}

func TestNonsenseOfAReplicaIsRefused(t *testing.T) {
	f := newFleet(t, "ca-0")
	s := f.replicas["ca-0"].Set
	for name, status := range map[string]*cav1.ReplicaStatus{
		"no name":     {Run: "r"},
		"no run":      {Name: "b"},
		"a long name": {Name: strings.Repeat("b", maxText+1), Run: "r"},
		"many folded": {Name: "b", Run: "r", Folded: make([]*cav1.FoldedCertificates, maxFolded+1)},
	} {
		if err := s.hear("b:1", status); err == nil || errors.Is(err, errSelf) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := s.fromProto([]*cav1.HeldCertificate{{Identity: "spiffe://a/b"}, {Fingerprint: make([]byte, 16)}, nil}); len(got) != 0 {
		t.Errorf("taken: %v", got)
	}
}
