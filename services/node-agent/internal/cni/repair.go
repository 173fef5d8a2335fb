package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// Repair is what happens to a Pod that started before the plugin was there.
type Repair string

// The ways of Repair, of Istio's names labelPods, deletePods and repairPods.
const (
	RepairOff    Repair = "off"
	RepairLabel  Repair = "label"
	RepairDelete Repair = "delete"
	RepairPod    Repair = "repair"
)

// Limits.
const (
	// maxBackoff is the longest pause before the Pods are followed again.
	maxBackoff = 30 * time.Second
	// maxResolvConf bounds a resolv.conf, in bytes.
	maxResolvConf = 64 << 10
)

// podClient changes Pods; *kube.Client implements it.
type podClient interface {
	FollowPods(ctx context.Context, node string, ready func(), f func(*kube.Pod)) error
	DeletePod(ctx context.Context, p *kube.Pod) error
	LabelPod(ctx context.Context, p *kube.Pod, key, value string) error
	Report(ctx context.Context, p *kube.Pod, kind, reason, message, host string) error
}

// repairer finds Pods whose validation has failed, and repairs them.
type repairer struct {
	mode                 Repair
	pods                 podClient
	node                 string
	container            string
	labelKey, labelValue string
	proc                 string
	write                func(ctx context.Context, namespace string, o *redirect.Options) error
	clock                clock.Clock
	metrics              *metrics
	log                  *slog.Logger
	following            atomic.Bool
	// done are the uids of Pods that need nothing more.
	done map[string]bool
}

// ready returns an error until the Pods have been seen once.
func (r *repairer) ready() error {
	if !r.following.Load() {
		return errors.New("the node's Pods are not known yet")
	}
	return nil
}

// run follows the Pods of the node until ctx ends.
func (r *repairer) run(ctx context.Context) error {
	pause := time.Second
	for ctx.Err() == nil {
		began := r.clock.Now()
		r.done = map[string]bool{} // a Pod that is still broken is seen again
		err := r.pods.FollowPods(ctx, r.node, func() { r.following.Store(true) }, func(p *kube.Pod) { r.look(ctx, p) })
		if err != nil && ctx.Err() == nil {
			r.log.Warn("the node's Pods cannot be followed", "error", err)
		}
		if r.clock.Now().Sub(began) > maxBackoff {
			pause = time.Second
		}
		clock.Sleep(ctx, r.clock, pause)
		pause = min(2*pause, maxBackoff)
	}
	return nil
}

// broken reports whether a Pod's validation has said that it has no rules.
func (r *repairer) broken(p *kube.Pod) bool {
	if _, injected := p.Metadata.Annotations[statusAnnotation]; !injected || p.Metadata.DeletionTimestamp != "" {
		return false
	}
	for _, c := range p.Status.InitContainerStatuses {
		ended := c.State.Terminated
		if c.State.Waiting != nil {
			ended = c.LastState.Terminated
		}
		if c.Name == r.container && ended != nil && ended.ExitCode == redirect.ExitUnverified {
			return true
		}
	}
	return false
}

// look repairs a Pod that is broken, once.
func (r *repairer) look(ctx context.Context, p *kube.Pod) {
	if !r.broken(p) || r.done[p.Metadata.UID] {
		return
	}
	log := r.log.With("namespace", p.Metadata.Namespace, "pod", p.Metadata.Name, "way", r.mode)
	reason, message, err := "Redirected", "", error(nil)
	switch r.mode {
	case RepairLabel:
		reason, message = "Unredirected", "The Pod started before the CNI plugin; delete it"
		if p.Metadata.Labels[r.labelKey] != r.labelValue {
			err = r.pods.LabelPod(ctx, p, r.labelKey, r.labelValue)
		}
	case RepairDelete:
		reason, message = "Unredirected", "The Pod started before the CNI plugin, and is deleted"
		err = r.pods.DeletePod(ctx, p)
	default:
		message = "The Pod started before the CNI plugin; its traffic is redirected now"
		err = r.inPlace(ctx, p)
	}
	kind, result := "Normal", "repaired"
	if err != nil {
		kind, reason, message, result = "Warning", "Unredirected", "The Pod started before the CNI plugin, and could not be repaired: "+err.Error(), "failed"
		log.Error("a Pod without rules could not be repaired", "error", err)
	} else {
		r.done[p.Metadata.UID] = true
		log.Info("a Pod without rules was repaired")
	}
	r.metrics.repairs.WithLabelValues(string(r.mode), result).Inc()
	if err := r.pods.Report(ctx, p, kind, reason, message, r.node); err != nil {
		log.Warn("an event could not be written", "error", err)
	}
}

// inPlace writes the rules into the network namespace of a running Pod.
func (r *repairer) inPlace(ctx context.Context, p *kube.Pod) error {
	dir, err := processOf(r.proc, p.Metadata.UID)
	if err != nil {
		return err
	}
	answer, why, err := decide(p, plugin.Nameservers(serversOf(filepath.Join(dir, "root/etc/resolv.conf"))))
	if err != nil {
		return err
	}
	if !answer.Redirect {
		return fmt.Errorf("its container %s waits for rules, but %s", r.container, why)
	}
	o, err := redirect.Parse(answer.Options)
	if err != nil {
		return err
	}
	return r.write(ctx, filepath.Join(dir, "ns/net"), o)
}

// writeRules is the repairer's write of production.
func writeRules(ctx context.Context, namespace string, o *redirect.Options) error {
	return redirect.In(namespace, func() error {
		_, err := redirect.Apply(ctx, o, redirect.Exec)
		return err
	})
}

// serversOf are the name servers of a file; none if it cannot be read.
func serversOf(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	conf, err := dns.ClientConfigFromReader(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return nil
	}
	return conf.Servers
}

// processOf is the directory in proc of a process of a Pod, whose network namespace is not that of the node's first
// process. A Pod's processes are in control groups that are named by its uid.
func processOf(proc, uid string) (string, error) {
	if uid == "" {
		return "", errors.New("the Pod has no uid")
	}
	group, err := regexp.Compile(`pod` + strings.ReplaceAll(regexp.QuoteMeta(uid), "-", "[-_]") + `(\.slice)?(/|$)`)
	if err != nil {
		return "", err
	}
	host, err := os.Stat(filepath.Join(proc, "1/ns/net"))
	if err != nil {
		return "", fmt.Errorf("the node's network namespace: %w", err)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !inGroup(group, string(raw)) {
			continue
		}
		if own, err := os.Stat(filepath.Join(dir, "ns/net")); err == nil && !os.SameFile(host, own) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no process of the Pod is found in %s: its network namespace is unknown", proc)
}

func inGroup(group *regexp.Regexp, cgroups string) bool {
	for line := range strings.SplitSeq(cgroups, "\n") {
		if group.MatchString(line) {
			return true
		}
	}
	return false
}
