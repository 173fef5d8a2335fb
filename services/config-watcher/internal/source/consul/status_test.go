package consul

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// becomes waits until the only registry that runs is as ok says.
func (r *rig) becomes(what string, ok func(Row) bool) (row Row) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		rows := r.Running()
		if len(rows) != 1 || !ok(rows[0]) {
			return fmt.Errorf("%s: %+v", what, rows)
		}
		row = rows[0]
		return nil
	})
	return row
}

// What alerts go by: limited and held are states of their own, and the time until which a registry was followed stands
// still while it is away, and goes on else.
func TestWhatARegistrySaysOfItself(t *testing.T) {
	r := newRig(t)
	r.dc.set(put("web", instances("web", 24)))
	r.dc.following = Following{Watches: 150, Polled: 40, Requests: 7, Limited: "read in turn"}
	r.file("east.yaml", declare())
	r.file("west.yaml", "address: 5")
	r.run()
	limited := r.becomes("limited", func(row Row) bool { return row.State == Limited && !row.SyncedAt.IsZero() })
	if limited.Name != "east" || limited.Watches != 150 || limited.Polled != 40 || limited.Requests != 7 ||
		time.Since(limited.SyncedAt) > testkit.Patience {
		t.Errorf("got %+v", limited)
	}
	later := r.becomes("followed", func(row Row) bool { return row.SyncedAt.After(limited.SyncedAt) })
	r.dc.mu.Lock()
	r.dc.away = errAway
	r.dc.mu.Unlock()
	away := r.becomes("away", func(row Row) bool { return row.State == Away })
	if away.SyncedAt.Before(later.SyncedAt) {
		t.Errorf("followed until %v, and before that %v", away.SyncedAt, later.SyncedAt)
	}
	r.look(time.Now().Add(time.Hour))
	if now := r.Running()[0]; time.Until(now.SyncedAt) > 0 {
		t.Errorf("while it is away the time goes on: %v, %v", away.SyncedAt, now.SyncedAt)
	}
	r.dc.mu.Lock()
	r.dc.away, r.dc.following = nil, Following{}
	r.dc.mu.Unlock()
	r.becomes("back", func(row Row) bool { return row.State == Synced && row.SyncedAt.After(away.SyncedAt) })
	r.dc.set(put("web", instances("web", 1)))
	r.becomes("held", func(row Row) bool { return row.State == Held && row.Held == 23 })
	if counts := r.Counts(); counts[Held] != 1 || counts[Refused] != 1 {
		t.Errorf("counted are %v", counts)
	}
}
