package mcp

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
)

// TestGoals measures what the same list of 10,000 ServiceEntries costs again, with MCP_BENCH=1. The server is in this
// process, so its part is in the result.
func TestGoals(t *testing.T) {
	if os.Getenv("MCP_BENCH") == "" {
		t.Skip("MCP_BENCH is not set: run `make mcp BENCH=1`")
	}
	const (
		size, times = 10_000, 10
		goal        = 100 * time.Millisecond
	)
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	var list []*anypb.Any
	for i := range size {
		list = append(list, serviceEntry(fmt.Sprintf("ns%d/e%05d", i%50, i)))
	}
	s.tell(entriesV1, list...)
	s.rest(entriesV1)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	events := c.count()
	before := cpu(t)
	for range times {
		s.tell(entriesV1, list...)
	}
	each := (cpu(t) - before) / times
	t.Logf("the same list of %d again takes %s of CPU, the server's part included", size, each.Round(100*time.Microsecond))
	if got := c.count(); got != events || events != size || each > goal {
		t.Errorf("%d events after %d, %s of CPU; want none and %s", got-events, events, each, goal)
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
