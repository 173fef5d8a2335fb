package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// requests sends the first requests, and checks which versions answered and which caller each server saw.
func (d *demo) requests(ctx context.Context) error {
	page, err := d.client.get(ctx, "/productpage")
	if err != nil {
		return fmt.Errorf("GET /productpage: %w", err)
	}
	d.check(strings.Contains(string(page), "<html") && !strings.Contains(string(page), "unavailable"),
		"/productpage is a whole HTML page, %d bytes", len(page))

	var list []answer
	began := time.Now()
	for range d.cfg.Requests {
		list = append(list, d.client.getChain(ctx))
	}
	took := time.Since(began)
	failed := d.failures(list)
	d.check(failed == 0, "%d requests, %d failed; %.0f requests/s one after the other, median %s, 99 %% within %s",
		len(list), failed, float64(len(list))/took.Seconds(), millis(percentile(list, 0.5)), millis(percentile(list, 0.99)))
	d.split(list)
	d.identities(list)
	return nil
}

// split checks that the versions of reviews answered in the proportions of the VirtualService.
func (d *demo) split(list []answer) {
	count := map[string]int{}
	for _, a := range list {
		count[a.version()]++
	}
	var parts []string
	for _, v := range []string{"v1", "v2", "v3"} {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", v, 100*float64(count[v])/float64(len(list))))
	}
	// Of 300 requests, each share is within 10 points of 50/30/20, but for one run in ten thousand.
	ok := true
	for v, want := range map[string]float64{"v1": 50, "v2": 30, "v3": 20} {
		got := 100 * float64(count[v]) / float64(len(list))
		ok = ok && got > want-12 && got < want+12
	}
	d.check(ok, "reviews: %s (the VirtualService asks for 50/30/20)", strings.Join(parts, ", "))
}

// identities checks that each server saw the identity of its one caller.
func (d *demo) identities(list []answer) {
	seen := map[string]map[string]bool{}
	for _, a := range list {
		for _, h := range a.hops {
			if seen[h.Service] == nil {
				seen[h.Service] = map[string]bool{}
			}
			seen[h.Service][h.Caller] = true
		}
	}
	callerOf := map[string]string{"productpage": "istio-ingressgateway", "details": "productpage", "reviews": "productpage",
		"ratings": "reviews"}
	for _, server := range []string{"productpage", "details", "reviews", "ratings"} {
		var callers []string
		for c := range seen[server] {
			callers = append(callers, c)
		}
		slices.Sort(callers)
		want := d.identityOf(callerOf[server])
		d.check(len(callers) == 1 && callers[0] == want, "%-12s was called by %s", server, strings.Join(callers, ", "))
	}
}

// identityOf returns the SPIFFE id of an app's Pods.
func (d *demo) identityOf(app string) string {
	for _, p := range d.state.Pods {
		if p.Labels["app"] == app {
			return p.Identity
		}
	}
	return "no Pod of app " + app
}

// settledAnswers is how many answers in a row must be of the new version for a change to count as complete.
const settledAnswers = 60

// startTraffic starts traffic and waits for its first answers.
func (d *demo) startTraffic(ctx context.Context) (*traffic, error) {
	t := d.client.startTraffic(ctx)
	err := waitUntil(ctx, func() bool { return len(t.snapshot()) >= settledAnswers })
	if err != nil {
		t.cancel()
	}
	return t, err
}

// shift applies the change under traffic, and measures when every proxy has acknowledged it and when requests follow
// it.
func (d *demo) shift(ctx context.Context) error {
	content, err := os.ReadFile(d.cfg.Change)
	if err != nil {
		return err
	}
	t, err := d.startTraffic(ctx)
	if err != nil {
		return err
	}
	defer t.cancel()
	write := time.Now()
	res, err := d.configAPI.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: d.cfg.Change, Content: content}}})
	if err != nil {
		return d.configAPI.Explain(err)
	}
	accepted := time.Since(write)
	wait, err := d.configAPI.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: res.GetRevision()})
	if err != nil {
		return d.configAPI.Explain(err)
	}
	acked := time.Since(write)
	_ = waitUntil(ctx, func() bool { _, ok := firstSettled(t.snapshot(), "v3", settledAnswers); return ok })
	list := t.stop()

	d.check(len(wait.GetPending())+len(wait.GetRejected()) == 0 && int(wait.GetAcked()) == len(d.proxies()),
		"revision %d: written after %s, acknowledged by %d of %d proxies after %s", wait.GetRevision().GetSequence(), millis(accepted),
		wait.GetAcked(), len(d.proxies()), millis(acked))
	first, ok := firstSettled(list, "v3", settledAnswers)
	if !ok {
		return errors.New("reviews are not all answered by v3")
	}
	d.check(true, "from the request on that began %s after the write, all were answered by v3", millis(max(0, first.began.Sub(write))))
	d.noFailures(list)
	return nil
}

// noFailures checks that no request failed.
func (d *demo) noFailures(list []answer) {
	failed := d.failures(list)
	took := time.Duration(0)
	if len(list) > 0 {
		took = list[len(list)-1].ended.Sub(list[0].began)
	}
	d.check(failed == 0 && len(list) > 0, "%d requests in %.1f s of steady traffic, %d failed, 99 %% within %s", len(list), took.Seconds(),
		failed, millis(percentile(list, 0.99)))
}

// killServer kills the xds-server that has the most proxies, and checks how soon all of these are connected again.
func (d *demo) killServer(ctx context.Context) error {
	before, err := d.configAPI.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		return d.configAPI.Explain(err)
	}
	if err := d.reload(); err != nil {
		return err
	}
	victim, lost := d.busiest(before.GetProxies())
	if victim == nil {
		return errors.New("no proxy is connected to an xds-server of this mesh")
	}
	t, err := d.startTraffic(ctx)
	if err != nil {
		return err
	}
	defer t.cancel()
	kill := time.Now()
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", victim.Name, err)
	}
	d.say("killed %s (pid %d), which served %d of %d proxies", victim.Name, victim.PID, len(lost), len(d.proxies()))
	var bytes uint64
	back := 0
	err = waitUntil(ctx, func() bool {
		now, err := d.configAPI.ListProxies(ctx, &configv1.ListProxiesRequest{})
		if err != nil {
			return false
		}
		back, bytes = reconnected(now.GetProxies(), lost)
		return back == len(lost)
	})
	took := time.Since(kill)
	list := t.stopAfter(ctx, settledAnswers)
	d.check(err == nil && took <= reconnectLimit,
		"%d of %d proxies were connected again after %s (limit %s), %d bytes of configuration were sent to them",
		back, len(lost), millis(took), reconnectLimit, bytes)
	d.noFailures(list)
	return nil
}

// busiest returns the running xds-server with the most proxies, and when each of these connected, by node id.
func (d *demo) busiest(proxies []*configv1.ProxyStatus) (*runstate.Service, map[string]time.Time) {
	var victim *runstate.Service
	lost := map[string]time.Time{}
	for i := range d.state.Services {
		s := &d.state.Services[i]
		if s.Program != "xds-server" || s.PID == 0 {
			continue
		}
		mine := map[string]time.Time{}
		for _, p := range proxies {
			if instanceOf(p.GetXdsServer(), s.Name) {
				mine[p.GetNodeId()] = p.GetConnectedAt().AsTime()
			}
		}
		if len(mine) > len(lost) {
			victim, lost = s, mine
		}
	}
	return victim, lost
}

// instanceOf reports whether a reporting instance, "xds-server-0/7c1f", is a run of the named process.
func instanceOf(instance, name string) bool {
	return instance == name || strings.HasPrefix(instance, name+"/")
}

// reconnected counts the lost proxies that have a new connection and have acknowledged a revision, and the bytes sent
// on these connections.
func reconnected(now []*configv1.ProxyStatus, lost map[string]time.Time) (back int, bytes uint64) {
	for _, p := range now {
		old, ok := lost[p.GetNodeId()]
		if !ok || !p.GetConnectedAt().AsTime().After(old) || p.GetAcked() == nil {
			continue
		}
		back++
		for _, ty := range p.GetTypes() {
			bytes += ty.GetBytesSent()
		}
	}
	return back, bytes
}

// renew renews the certificate of the proxy that serves the traffic.
func (d *demo) renew(ctx context.Context) error {
	if err := d.reload(); err != nil {
		return err
	}
	pod, err := rundir.Proxy(d.state, "reviews-v3", "")
	if err != nil {
		return err
	}
	admin := envoyadmin.New(pod.Agent.AdminSocket)
	before, err := admin.Certificates(ctx)
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return fmt.Errorf("%s has no certificate", pod.ID())
	}
	t, err := d.startTraffic(ctx)
	if err != nil {
		return err
	}
	defer t.cancel()
	began := time.Now()
	if err := syscall.Kill(pod.Agent.PID, syscall.SIGUSR1); err != nil {
		return fmt.Errorf("signal the agent: %w", err)
	}
	var fresh *envoyadmin.Certificate
	_ = waitUntil(ctx, func() bool {
		now, err := admin.Certificates(ctx)
		if err != nil {
			return false
		}
		fresh = envoyadmin.Fresh(now, before)
		return fresh != nil
	})
	took := time.Since(began)
	list := t.stopAfter(ctx, settledAnswers)
	if fresh == nil {
		d.fail("%s still has the certificate %s", pod.ID(), before[0].Serial)
	} else {
		d.check(true, "%s: serial %s became %s after %s", pod.ID(), before[0].Serial, fresh.Serial, millis(took))
	}
	d.noFailures(list)
	return nil
}

// broken checks that a broken object is refused and changes nothing.
func (d *demo) broken(ctx context.Context) error {
	content, err := os.ReadFile(d.cfg.Broken)
	if err != nil {
		return err
	}
	before, err := d.configAPI.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		return d.configAPI.Explain(err)
	}
	_, err = d.configAPI.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: d.cfg.Broken, Content: content}}})
	var refusal *configapi.RefusedError
	if !errors.As(d.configAPI.Explain(err), &refusal) {
		return errors.Join(errors.New("the broken object was not refused"), err)
	}
	for _, p := range refusal.Problems {
		d.say("%s", p)
	}
	d.check(true, "refused")
	var list []answer
	for range settledAnswers {
		list = append(list, d.client.getChain(ctx))
	}
	after, err := d.configAPI.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		return d.configAPI.Explain(err)
	}
	failed := d.failures(list)
	_, still := firstSettled(list, "v3", settledAnswers)
	d.check(failed == 0 && still, "traffic is unchanged: %d requests, %d failed, all answered by v3: %t", len(list), failed, still)
	d.check(before.GetRevision().GetSequence() == after.GetRevision().GetSequence(), "the revision is still %d",
		after.GetRevision().GetSequence())
	return nil
}

// waitUntil calls done until it returns true or ctx ends.
func waitUntil(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
