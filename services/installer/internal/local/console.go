package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/plan"
)

// showConsole redraws the console at every change, and every second for ages and revisions.
func (n *Node) showConsole(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := n.statuses.Changed()
		n.cfg.Console.Show(n.rows())
		select {
		case <-ctx.Done():
		case <-changed:
			// Changes come in bursts.
			n.wait(ctx, 50*time.Millisecond)
		case <-n.cfg.Clock.After(revisionsPeriod):
		}
	}
	return nil
}

// rows is the console's table: services first, then each Pod's processes.
func (n *Node) rows() []console.Row {
	entries := n.statuses.Snapshot()
	n.mu.Lock()
	defer n.mu.Unlock()
	var rows []console.Row
	add := func(name, revision string) {
		e := entries[name]
		rows = append(rows, console.Row{
			Service: name, PID: e.PID, Ready: e.Ready, Reason: e.Reason, Restarts: e.Restarts,
			Revision: revision, Expires: n.seen.expiry[name],
		})
	}
	for _, s := range n.cfg.Plan.Services {
		number := n.seen.served[s.Name]
		if s.Program == "config-watcher" {
			number = n.seen.newest
		}
		revision := ""
		if number > 0 {
			revision = fmt.Sprint(number)
		}
		add(s.Name, revision)
	}
	for _, p := range n.cfg.Plan.Pods {
		if n.resting[p.ID()] {
			continue
		}
		for _, c := range p.Containers {
			add(c.Name, "")
		}
		if p.Agent != nil {
			revision := ""
			if r, ok := n.seen.acked[p.NodeID()]; ok {
				revision = fmt.Sprint(r)
			}
			add(p.Agent.Name, revision)
		}
	}
	return rows
}

// unready lists the processes and Pods that are not ready, each with the reason.
func (n *Node) unready() []string {
	entries, pods := n.statuses.Snapshot(), n.runs()
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	wanted := lists.Map(n.cfg.Plan.Services, func(s *plan.Service) plan.Process { return s.Process })
	for _, p := range pods {
		wanted = append(wanted, p.Processes()...)
	}
	for _, p := range wanted {
		e := entries[p.Name]
		switch {
		case e.Ready:
		case e.PID == 0 && e.Exit != "":
			list = append(list, fmt.Sprintf("%s (%s; see %s)", p.Name, e.Reason, p.Log))
		default:
			list = append(list, fmt.Sprintf("%s (%s)", p.Name, e.Reason))
		}
	}
	for _, p := range pods {
		if len(list) == 0 && !n.pods[p.ID()] {
			list = append(list, fmt.Sprintf("Pod %s (its status is not written yet)", p.ID()))
		}
	}
	return list
}

// reportReady prints what is not ready after firstHint, and again every notReadyHint.
const (
	firstHint    = 5 * time.Second
	notReadyHint = 15 * time.Second
)

// reportReady waits until everything is ready and every proxy has acknowledged the newest revision, and reports it
// once. It returns an error after ReadyTimeout.
func (n *Node) reportReady(ctx context.Context) error {
	began := n.cfg.Clock.Now()
	hint := began.Add(firstHint - notReadyHint)
	for ctx.Err() == nil {
		changed := n.statuses.Changed()
		missing := n.unready()
		if len(missing) == 0 {
			err := n.allAcked(ctx)
			if err == nil {
				break
			}
			missing = []string{err.Error()}
		}
		now := n.cfg.Clock.Now()
		if d := n.cfg.ReadyTimeout; d > 0 && now.Sub(began) > d {
			return fmt.Errorf("not everything is ready after %s: %s; see the logs in %s", d, strings.Join(missing, ", "), n.cfg.Layout.Logs())
		}
		if now.Sub(hint) > notReadyHint {
			hint = now
			n.cfg.Console.Line("waiting for " + joinFew(missing))
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-n.cfg.Clock.After(time.Second):
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // ctx ended, which is no failure
	}
	if err := n.setReady(n.cfg.Clock.Now().Sub(began)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// allAcked returns an error unless every proxy has acknowledged the newest revision.
func (n *Node) allAcked(ctx context.Context) error {
	if n.proxies() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := n.configAPI.WaitAcked(ctx, &configv1.WaitAckedRequest{}, grpc.WaitForReady(true))
	switch {
	case err != nil:
		return fmt.Errorf("the fleet is not known: %w", n.configAPI.Explain(err))
	case len(res.GetRejected()) > 0:
		return fmt.Errorf("%d proxies reject revision %d; see `fairlead proxy-status`", len(res.GetRejected()), res.GetRevision().GetSequence())
	case len(res.GetPending()) > 0:
		return fmt.Errorf("%d proxies do not have revision %d yet", len(res.GetPending()), res.GetRevision().GetSequence())
	case int(res.GetAcked()) < n.proxies():
		return errors.New("not every proxy is connected yet")
	}
	return nil
}

// proxies counts the Envoys. A proxyless gRPC client connects when it wants to, so nothing waits for it.
func (n *Node) proxies() int {
	count := 0
	for _, p := range n.runs() {
		if p.Agent != nil && !p.Agent.NoEnvoy {
			count++
		}
	}
	return count
}

// setReady writes state.json and the ready file, and prints the URLs of the gateways.
func (n *Node) setReady(after time.Duration) error {
	n.mu.Lock()
	n.ready = true
	n.mu.Unlock()
	if n.writeState() != nil {
		n.statuses.Notify() // keepState reports the error and repeats the write
	}
	n.cfg.Console.Show(n.rows())
	n.cfg.Console.Line(fmt.Sprintf("all is ready after %.1f s", after.Seconds()))
	for _, u := range n.cfg.Plan.URLs {
		hosts := ""
		if len(u.Hosts) > 0 && !slices.Contains(u.Hosts, "*") && !slices.Contains(u.Hosts, "*/*") {
			hosts = ", host " + strings.Join(u.Hosts, ", ")
		}
		n.cfg.Console.Line(fmt.Sprintf("%s   (gateway %s%s)", u.URL, u.Pod, hosts))
	}
	for _, line := range podLines(n.cfg.Plan) {
		n.cfg.Console.Line(line)
	}
	if n.cfg.ReadyFile == "" {
		return nil
	}
	body, err := json.MarshalIndent(struct {
		RunDir string     `json:"runDir"`
		URLs   []plan.URL `json:"urls"`
	}{n.cfg.Layout.Dir, n.cfg.Plan.URLs}, "", "  ")
	if err != nil {
		return err
	}
	if err := fileio.Replace(n.cfg.ReadyFile, append(body, '\n')); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return nil
}

// maxPodLines is how many Pods are listed with their addresses.
const maxPodLines = 12

// podLines lists the Pods' addresses, and a call that acts as one of them.
func podLines(p *plan.Plan) (lines []string) {
	for _, pod := range p.Pods[:min(len(p.Pods), maxPodLines)] {
		lines = append(lines, fmt.Sprintf("%s   (Pod %s)", pod.IP, pod.ID()))
	}
	if more := len(p.Pods) - maxPodLines; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d Pods more; `fairlead config get pods -A` lists them with their addresses", more))
	}
	if p.Example != "" {
		lines = append(lines, p.Example)
	}
	return lines
}
