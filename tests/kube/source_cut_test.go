package kube

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// cable forwards connections to an API server until they are cut, except while it is frozen: then bytes are lost for
// the time being, as where a network drops packets. A connection that is made meanwhile gets no answer either.
type cable struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
	// flows is closed while bytes flow.
	flows chan struct{}
	// forgotten connections carry no bytes any more.
	forgotten map[net.Conn]bool
}

// freeze stops all bytes, without the end of any connection.
func (c *cable) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flows = make(chan struct{})
}

// thaw forwards what has gathered, and all that follows; as TCP does, which sends again what was dropped.
func (c *cable) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.flows:
	default:
		close(c.flows)
	}
}

// forget makes all open connections carry no bytes any more, ever, without an end: a firewall or a load balancer has
// lost its table of connections.
func (c *cable) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		c.forgotten[conn] = true
	}
}

// frozen is a writer that waits while the cable is frozen.
type frozen struct {
	*cable
	to net.Conn
}

// Write implements io.Writer.
func (f frozen) Write(p []byte) (int, error) {
	f.mu.Lock()
	flows := f.flows
	f.mu.Unlock()
	<-flows
	f.mu.Lock()
	forgotten := f.forgotten[f.to]
	f.mu.Unlock()
	if forgotten {
		return len(p), nil
	}
	return f.to.Write(p)
}

// newCable returns a cable to an API server, and a kubeconfig of its administrator that leads through it.
func newCable(t *testing.T, s *kubeapi.Server) (c *cable, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c = &cable{open: map[net.Conn]struct{}{}, flows: make(chan struct{}), forgotten: map[net.Conn]bool{}}
	c.thaw()
	lis := testkit.LoopbackListener(t)
	t.Cleanup(func() {
		_ = lis.Close()
		c.thaw()
		c.cut()
	})
	var target string
	for _, cluster := range config.Clusters {
		target = cluster.Server[len("https://"):]
		host, _, err := net.SplitHostPort(target)
		if err != nil {
			t.Fatal(err)
		}
		cluster.Server, cluster.TLSServerName = "https://"+lis.Addr().String(), host
	}
	go func() {
		for {
			from, err := lis.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				_ = from.Close()
				continue
			}
			c.join(from, to)
		}
	}()
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return c, kubeconfig
}

func (c *cable) join(a, b net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for from, to := range map[net.Conn]net.Conn{a: b, b: a} {
		c.open[from] = struct{}{}
		go func() {
			_, _ = io.Copy(frozen{c, to}, from)
			_ = to.Close()
			_ = from.Close()
			c.mu.Lock()
			delete(c.open, from)
			c.mu.Unlock()
		}()
	}
}

// cut ends all connections.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
}

// TestWatchesThatAreLostAreResumed: after connections are cut, watches go on from where they were, and the API server
// is asked for no list again.
func TestWatchesThatAreLostAreResumed(t *testing.T) {
	// A list that is streamed would count as a watch.
	s := kubeapi.Start(t, kubeapi.Options{Args: []string{"--feature-gates=WatchList=false"}})
	m := newMesh(t, s)
	m.apply(1, "first")
	c, kubeconfig := newCable(t, s)
	w := startWatcher(t, kubeconfig)
	v := w.subscribe()
	// A watch that ends within a second without an event counts as broken: client-go lists again.
	m.apply(1, "second")
	m.check(w, 1)
	client := s.Client(t)
	lists, removed := listRequests(t, client), v.removals()
	for i := range 3 {
		before := w.metric("source_kind_watch_restarts_total")
		c.cut()
		m.apply(1, fmt.Sprintf("missed-%d", i))
		m.check(w, 1)
		testkit.Eventually(t, patience, func() error {
			if n := w.metric("source_kind_watch_restarts_total") - before; n < float64(len(m.all)) {
				return fmt.Errorf("only %v watches were opened again", n)
			}
			return nil
		})
		m.apply(1, fmt.Sprintf("seen-%d", i))
		m.check(w, 1)
	}
	if n := listRequests(t, client) - lists; n != 0 {
		t.Errorf("%v lists", n)
	}
	if n := v.removals() - removed; n != 0 {
		t.Errorf("%d resources were removed", n)
	}
	w.until("not degraded", func(st sourceState) bool { return st.Degraded == "" && len(st.DegradedKinds) == 0 })
}
