package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/local/plan"
)

// callTimeout bounds one call to config-watcher.
const callTimeout = 5 * time.Second

// podReady reports whether all containers of the Pod and its agent are ready.
func podReady(p *plan.Pod, entries map[string]processStatus) bool {
	if p.Agent != nil && !entries[p.Agent.Name].Ready {
		return false
	}
	return lists.All(p.Containers, func(c plan.Container) bool { return entries[c.Name].Ready })
}

// publish writes the Pods' objects into config-watcher, starts the Pods' processes, and then writes a Pod's status
// whenever its readiness changes. It repeats a write that fails with the newest readiness.
func (n *Node) publish(ctx context.Context) error {
	if err := n.createObjects(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	close(n.published)
	n.startPods()
	for ctx.Err() == nil {
		changed := n.statuses.Changed()
		entries := n.statuses.Snapshot()
		failed := false
		for _, p := range n.runs() {
			ready := podReady(p, entries)
			if old, ok := n.writtenReady(p); ok && old == ready {
				continue
			}
			err := n.writeStatus(ctx, p, ready)
			// NotFound: somebody has deleted the Pod, which watchObjects writes again.
			if err != nil && ctx.Err() == nil && status.Code(err) != codes.NotFound {
				n.cfg.Log.Warn("pod status was not written and is tried again", "pod", p.ID(), "error", err)
			}
			failed = failed || err != nil
		}
		if failed {
			if !n.wait(ctx, 500*time.Millisecond) {
				return nil
			}
			continue
		}
		waitFor(ctx, changed)
	}
	return nil
}

// writtenReady is the readiness in a Pod's written status; ok is false before the first.
func (n *Node) writtenReady(p *plan.Pod) (ready, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ready, ok = n.pods[p.ID()]
	return ready, ok
}

// createObjects checks the user's files, and then writes the Pods and the generated Sidecars, all or none.
func (n *Node) createObjects(ctx context.Context) error {
	if err := n.checkFiles(ctx); err != nil {
		return err
	}
	manifests, err := n.manifests(n.cfg.Plan.Pods...)
	if err != nil || len(manifests) == 0 {
		return err
	}
	return n.retryUntilAccepted(ctx, func(ctx context.Context) error { return n.apply(ctx, manifests) })
}

// retryUntilAccepted repeats a write until config-watcher accepts it. If config-watcher refuses it, the error is a
// *RefusedError and ends Run.
func (n *Node) retryUntilAccepted(ctx context.Context, write func(context.Context) error) error {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := write(call)
		cancel()
		if err == nil {
			return nil
		}
		err = n.configAPI.Explain(err)
		if _, ok := errors.AsType[*configapi.RefusedError](err); ok {
			return &RefusedError{Err: err}
		}
		n.cfg.Log.Debug("config-watcher does not accept the mesh yet", "error", err)
		if !n.wait(ctx, 200*time.Millisecond) {
			return nil
		}
	}
	return nil
}

func (n *Node) apply(ctx context.Context, manifests []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := n.configAPI.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "fairlead-up", Content: manifests}}},
		grpc.WaitForReady(true))
	return err
}

// manifests returns Pods and their generated Sidecars as one text of documents.
func (n *Node) manifests(pods ...*plan.Pod) ([]byte, error) {
	var docs [][]byte
	for _, p := range pods {
		pod, err := json.Marshal(p.Manifest(false, n.cfg.Clock.Now()))
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", p.ID(), err)
		}
		docs = append(docs, pod)
		if p.Sidecar != nil {
			docs = append(docs, p.Sidecar)
		}
	}
	return bytes.Join(docs, []byte("\n---\n")), nil
}

// writeStatus writes a Pod's status and records its readiness.
func (n *Node) writeStatus(ctx context.Context, p *plan.Pod, ready bool) error {
	n.statusMu.Lock()
	defer n.statusMu.Unlock()
	body, err := json.Marshal(p.Status(ready, n.cfg.Clock.Now()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = n.configAPI.UpdateStatus(ctx, &configv1.UpdateStatusRequest{
		Key:    &configv1.ObjectKey{ApiVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name},
		Status: body,
	}, grpc.WaitForReady(true))
	if err == nil {
		n.mu.Lock()
		n.pods[p.ID()] = ready
		n.mu.Unlock()
		n.statuses.Notify()
	}
	return err
}
