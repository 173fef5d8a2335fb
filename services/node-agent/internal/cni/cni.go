// Package cni is "node-agent cni", the agent of a node, which runs as a DaemonSet: it installs the CNI plugin (package
// install), answers its questions about Pods (package plugin asks, package kube reads them), repairs Pods that started
// before the plugin, and takes from the node the taint that kept Pods away until then. Package command calls Run.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/services/node-agent/internal/cni/install"
	"fairlead.dev/services/node-agent/internal/cni/kube"
)

// Config are the flags of "node-agent cni".
type Config struct {
	Install install.Config
	Kube    kube.Config
	// Node is the node's name.
	Node       string
	OpsAddress string
	Repair     Repair
	// InitContainer is the one that validates rules.
	InitContainer string
	// LabelKey and LabelValue are the label of RepairLabel.
	LabelKey, LabelValue string
	// Proc is the node's /proc.
	Proc string
	// Taint is the key of the taint to remove once the plugin is there; "" removes none.
	Taint string
}

// untaintAgain is the pause between looks at the node's taints: it may get one again.
const untaintAgain = 10 * time.Second

// decideWithin bounds the question whether this agent is being removed for good.
const decideWithin = 5 * time.Second

type metrics struct {
	pods         *prometheus.CounterVec
	repairs      *prometheus.CounterVec
	acceptErrors prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		pods: telemetry.CounterVec(reg, prometheus.CounterOpts{
			Name: "fairlead_node_agent_cni_pods_total",
			Help: "Pods that the CNI plugin asked about, by result: redirected, left (it has no sidecar) or failed.",
		}, "result", "redirected", "left", "failed"),
		repairs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_node_agent_cni_repairs_total",
			Help: "Pods that started before the CNI plugin, by way (label, delete or repair) and result (repaired, failed or hangs).",
		}, []string{"way", "result"}),
		acceptErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_cni_accept_errors_total",
			Help: "Attempts to accept a connection of the CNI plugin that failed, as without file handles; Pods wait.",
		}),
	}
	// Every value is there from the start: a rate does not count the event with which a series begins.
	for _, way := range []Repair{RepairLabel, RepairDelete, RepairPod} {
		for _, result := range []string{"repaired", "failed", "hangs"} {
			m.repairs.WithLabelValues(string(way), result)
		}
	}
	return m
}

// Run is the agent, until ctx ends. It then takes the plugin out of the node if its DaemonSet is being removed.
// Otherwise another agent comes, and Pods wait for it.
func Run(ctx context.Context, c Config, reg *prometheus.Registry, log *slog.Logger) error {
	client, err := kube.New(c.Kube)
	if err != nil {
		return err
	}
	c.Install.Clock, c.Install.Log = clock.Real(), log
	m := newMetrics(reg)
	lis, err := listen(ctx, c.Install.Plugin.Socket)
	if err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	opsListener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.OpsAddress)
	if err != nil {
		lis.Close()
		return fmt.Errorf("--ops-address: %w", err)
	}
	installer := install.New(c.Install)
	server := &server{pods: client, metrics: m, log: log}
	health := ops.New(ops.Config{Listener: opsListener, Log: log, Gatherer: reg})
	health.Ready("plugin", installer.Ready)
	tasks := []process.Task{
		{Name: "socket", Run: func(ctx context.Context) error { return server.serve(ctx, lis) }},
		{Name: "install", Run: installer.Run},
		{Name: "ops", Run: health.Run},
	}
	if c.Repair != RepairOff {
		r := &repairer{
			mode: c.Repair, pods: client, node: c.Node, container: c.InitContainer, labelKey: c.LabelKey, labelValue: c.LabelValue,
			proc: c.Proc, write: writeRules, clock: clock.Real(), metrics: m, log: log, turns: repairTurns(), begun: map[string]bool{},
		}
		health.Ready("pods", r.ready)
		tasks = append(tasks, process.Task{Name: "repair", Run: r.run})
	}
	if c.Taint != "" {
		tasks = append(tasks, process.Task{Name: "taint", Run: func(ctx context.Context) error {
			untaint(ctx, client, c, installer.Ready, log)
			return nil
		}})
	}
	return errors.Join(process.Run(ctx, log, tasks...), leave(context.WithoutCancel(ctx), client, c, installer, log))
}

// nodeClient changes nodes; *kube.Client implements it.
type nodeClient interface {
	Untaint(ctx context.Context, node, key string) (bool, error)
}

// untaint removes the taint whenever the node has it while the plugin is there.
func untaint(ctx context.Context, client nodeClient, c Config, ready func() error, log *slog.Logger) {
	for {
		pause := untaintAgain
		if ready() != nil {
			pause = time.Second
		} else if had, err := client.Untaint(ctx, c.Node, c.Taint); err != nil && ctx.Err() == nil {
			log.Warn("the node's taint could not be removed", "taint", c.Taint, "error", err)
		} else if had {
			log.Info("the node takes Pods: its taint is removed", "taint", c.Taint)
		}
		if !clock.Sleep(ctx, clock.Real(), pause) {
			return
		}
	}
}

// daemonSets tells whether a DaemonSet is being removed; *kube.Client implements it.
type daemonSets interface {
	DaemonSetGone(ctx context.Context, namespace, name string) (bool, error)
}

// leave takes the plugin out of the node if the DaemonSet is being removed. If that is unknown the plugin stays: Pods
// that cannot start are better than Pods whose traffic goes past their proxy.
func leave(ctx context.Context, client daemonSets, c Config, installer *install.Installer, log *slog.Logger) error {
	p := c.Install.Plugin
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()
	gone, err := client.DaemonSetGone(ctx, p.AgentNamespace, p.AgentName)
	if err != nil {
		log.Warn("the CNI plugin stays on the node: whether its DaemonSet is being removed is unknown", "error", err)
		return nil
	}
	if !gone {
		log.Info("the CNI plugin stays on the node: Pods wait for the next agent")
		return nil
	}
	if err := installer.Remove(); err != nil {
		return fmt.Errorf("take the CNI plugin out of the node: %w", err)
	}
	log.Info("the CNI plugin is no longer on the node")
	return nil
}
