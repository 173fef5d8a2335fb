package mcpserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Goals for size ServiceEntries.
const (
	size          = 10_000
	readWithin    = 5 * time.Second
	changeP99     = 300 * time.Millisecond
	clients       = 20
	changesOfGoal = 100
)

// TestGoals measures what 10,000 ServiceEntries cost, with MCP_BENCH=1: client and server are in this process.
func TestGoals(t *testing.T) {
	if os.Getenv("MCP_BENCH") == "" {
		t.Skip("MCP_BENCH is not set: run `make mcp BENCH=1`")
	}
	f := serve(t)
	var all []*object.Object
	for i := range size {
		all = append(all, entry(fmt.Sprintf("ns%d/e%05d", i%50, i), "memory", 80))
	}
	f.put(all...)

	began, used := time.Now(), cpu(t)
	c := client(t, f)
	testkit.Eventually(t, time.Minute, func() error {
		if !c.HasSynced() {
			return fmt.Errorf("%d objects", c.Status().Objects)
		}
		return nil
	})
	took := time.Since(began)
	t.Logf("%d ServiceEntries are read within %s, with %s of CPU", size, took.Round(time.Millisecond), (cpu(t) - used).Round(time.Millisecond))
	if n := c.Status().Objects; n != size || took > readWithin {
		t.Errorf("%d objects within %s, want %s", n, took, readWithin)
	}
	c.stop()
	t.Run("one change", func(t *testing.T) { oneChange(t, f) })
}

// arrived is a message that a client of the benchmark has not decoded: that is the client's cost.
type arrived struct {
	bytes int
	// ofEntries is true if it is a list of ServiceEntries: its type is behind the resources.
	ofEntries bool
}

// arrival is the codec of such clients.
type arrival struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (a arrival) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*arrived)
	if !ok {
		return a.CodecV2.Unmarshal(data, v)
	}
	tail := make([]byte, min(data.Len(), 256))
	r := data.Reader()
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, int64(data.Len()-len(tail))); err != nil {
		return err
	}
	if _, err := io.ReadFull(r, tail); err != nil {
		return err
	}
	m.bytes, m.ofEntries = data.Len(), bytes.Contains(tail, []byte(entries))
	return nil
}

// oneChange measures how long after a change each of the clients has received the list, which is that of its kind
// alone.
func oneChange(t *testing.T, f *fixture) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var waits []time.Duration
	var mu sync.Mutex
	var changed time.Time
	var running, received sync.WaitGroup
	other := 0
	running.Add(clients)
	for range clients {
		s, err := f.dial().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			discovery.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName,
			grpc.ForceCodecV2(arrival{encoding.GetCodecV2(proto.Name)}))
		if err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{"networking.istio.io/v1/VirtualService", entries} {
			if err := s.SendMsg(&discovery.DiscoveryRequest{TypeUrl: url}); err != nil {
				t.Fatal(err)
			}
			if err := s.RecvMsg(&arrived{}); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			defer running.Done()
			for range changesOfGoal {
				m := &arrived{}
				if err := s.RecvMsg(m); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				waits = append(waits, time.Since(changed))
				if !m.ofEntries || m.bytes < 100*size {
					other++
				}
				mu.Unlock()
				received.Done()
			}
		}()
	}
	began := cpu(t)
	for i := range changesOfGoal {
		received.Add(clients)
		mu.Lock()
		changed = time.Now()
		mu.Unlock()
		f.put(entry("ns0/e00000", "memory", uint32(1000+i)))
		received.Wait()
		time.Sleep(pace) // changes come one by one
	}
	running.Wait()
	slices.Sort(waits)
	p99 := waits[len(waits)*99/100]
	t.Logf("one change has reached %d clients within p50 %s, p99 %s; %s of CPU", clients, waits[len(waits)/2].Round(time.Millisecond),
		p99.Round(time.Millisecond), ((cpu(t) - began) / changesOfGoal).Round(time.Millisecond))
	if other > 0 || p99 > changeP99 {
		t.Errorf("%d lists of something else; p99 %s, want %s", other, p99, changeP99)
	}
}

// cpu is what this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
