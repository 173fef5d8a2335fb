package catalog_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
)

// TestRealManyServices reads 500 services of ten instances each, or 10,000 with LONG, and asserts what that costs.
func TestRealManyServices(t *testing.T) {
	services := 500
	if os.Getenv("LONG") != "" {
		services = 10_000
	}
	const instances, changes = 10, 20
	agent := consultest.DevTLS(t)
	began := time.Now()
	agent.RegisterAll(t, many(services, instances))
	t.Logf("registered in %s", time.Since(began))
	before := heap()
	began = time.Now()
	c, m := follow(t, of(agent, nil))
	if took := time.Since(began); took > time.Minute {
		t.Errorf("read in %s", took)
	} else {
		t.Logf("read in %s, %d MiB of heap and stacks", took, (heap()-before)>>20)
	}
	time.Sleep(20 * time.Second) // until all readings wait
	st, used := c.Status(), cpu(t)
	time.Sleep(time.Minute)
	requests, spent := c.Status().Requests-st.Requests, cpu(t)-used
	t.Logf("at rest: %d requests and %s of a processor in a minute", requests, spent)
	if requests > 50*60 || spent > 60*time.Second*3/100 || st.State != catalog.Synced {
		t.Errorf("at rest: %d requests and %s in a minute, %+v", requests, spent, c.Status())
	}
	var worst time.Duration
	for i := range changes {
		name, id := fmt.Sprintf("s%05d", i*services/changes), fmt.Sprintf("s%05d-3", i*services/changes)
		changed := consultest.Instance(fmt.Sprintf("node%04d", (i*services/changes*instances+3)%1000), name, id, catalog.Critical)
		agent.Register(t, changed)
		began := time.Now()
		testkit.Eventually(t, testkit.Patience, func() error {
			if m.statuses(name)[id] != catalog.Critical {
				return fmt.Errorf("%s is not critical", id)
			}
			return nil
		})
		worst = max(worst, time.Since(began))
	}
	t.Logf("a change is seen after %s at most", worst)
	if lost := m.losses(); len(lost) > 0 {
		t.Errorf("%v were removed", lost)
	}
}

func many(services, instances int) (all []consultest.Registration) {
	for i := range services {
		for j := range instances {
			all = append(all, consultest.Instance(fmt.Sprintf("node%04d", (i*instances+j)%1000), fmt.Sprintf("s%05d", i),
				fmt.Sprintf("s%05d-%d", i, j), catalog.Passing))
		}
	}
	return all
}

func heap() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// cpu is the time that this process has used a processor.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	testkit.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
