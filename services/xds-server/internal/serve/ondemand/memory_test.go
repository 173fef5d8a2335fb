package ondemand

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func TestMemoryIsBounded(t *testing.T) {
	clock := testkit.NewClock(time.Unix(1000, 0))
	m := New(clock)
	var many []string
	for i := range 2 * maxRememberedNames {
		many = append(many, fmt.Sprint("name-", i))
	}
	id := func(a ...any) Proxy { return Proxy{Node: fmt.Sprint(a...)} }
	for i := range maxRememberedWorkloads + 10 {
		m.Remember(id(i), "t", many[:3])
	}
	if n := len(m.workloads); n != maxRememberedWorkloads || m.Names(id("0"), "t") != nil || len(m.Names(id("10"), "t")) != 3 {
		t.Errorf("%d workloads", n)
	}
	for i := range maxRememberedWorkloads {
		m.Remember(id("big", i), "t", many)
	}
	if m.bytes > maxRememberedBytes || len(m.Names(id("big", maxRememberedWorkloads-1), "t")) != maxRememberedNames {
		t.Errorf("%d bytes", m.bytes)
	}
	m.Remember(id("late"), "t", many[:1])
	clock.Advance(rememberFor + time.Second)
	before := m.bytes
	if got := m.Names(id("late"), "t"); got != nil || m.bytes >= before {
		t.Errorf("remembered too long: %q", got)
	}
}
