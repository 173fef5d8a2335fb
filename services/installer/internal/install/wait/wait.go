// Package wait waits until objects are ready, and until they are gone. Its errors say what holds them up: the Pod, the
// reason, the last line of its log, a finalizer. Package apply calls it between components.
package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/install/cluster"
)

// interval is the time between two looks.
const interval = 500 * time.Millisecond

// maxNamed bounds the objects that an error names.
const maxNamed = 10

// State is how ready an object is.
type State struct {
	Ready bool
	// Reason says what is missing.
	Reason string
	// Failed says that waiting does not help.
	Failed bool
}

// Waits says whether an installation waits for objects of a kind: whether their status tells that they are ready.
func Waits(id cluster.ID) bool {
	switch id.Kind {
	case "Deployment", "DaemonSet", "StatefulSet":
		return id.Group == "apps"
	case "Job":
		return id.Group == "batch"
	}
	return id.IsCRD()
}

// Of judges an object of a kind that has a readiness, as kubectl rollout status does.
func Of(u *unstructured.Unstructured) State {
	number := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(u.Object, fields...)
		return n
	}
	id := cluster.Of(u)
	if u.GetDeletionTimestamp() != nil {
		return State{Reason: "it is being deleted"}
	}
	if id.IsCRD() {
		return definition(u)
	}
	if id.Kind == "Job" {
		if c := condition(u, "Failed"); c.status == "True" {
			return State{Failed: true, Reason: c.text()}
		}
		return State{Ready: condition(u, "Complete").status == "True", Reason: "it is not complete"}
	}
	if number("status", "observedGeneration") < u.GetGeneration() {
		return State{Reason: "its controller has not seen it"}
	}
	wanted, found, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if !found {
		wanted = 1
	}
	updated, available, all := number("status", "updatedReplicas"), number("status", "availableReplicas"), number("status", "replicas")
	switch id.Kind {
	case "Deployment":
		if c := condition(u, "Progressing"); c.status == "False" && c.reason == "ProgressDeadlineExceeded" {
			return State{Failed: true, Reason: c.text()}
		}
	case "DaemonSet":
		wanted = number("status", "desiredNumberScheduled")
		updated, available, all = number("status", "updatedNumberScheduled"), number("status", "numberAvailable"), wanted
	}
	switch {
	case updated < wanted:
		return State{Reason: fmt.Sprintf("%d of %d Pods are of the new version", updated, wanted)}
	case all > updated:
		return State{Reason: fmt.Sprintf("%d Pods of the old version are still there", all-updated)}
	case available < wanted:
		return State{Reason: fmt.Sprintf("%d of %d Pods are ready", available, wanted)}
	}
	return State{Ready: true}
}

func definition(u *unstructured.Unstructured) State {
	if c := condition(u, "NamesAccepted"); c.status == "False" {
		return State{Failed: true, Reason: c.text()}
	}
	return State{Ready: condition(u, "Established").status == "True", Reason: "it is not established"}
}

type found struct{ status, reason, message string }

func (c found) text() string { return strings.TrimPrefix(c.reason+": "+c.message, ": ") }

func condition(u *unstructured.Unstructured, kind string) found {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["type"] == kind {
			return found{text(c["status"]), text(c["reason"]), text(c["message"])}
		}
	}
	return found{}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// causeEvery is the time between two looks at the Pods of what is waited for.
const causeEvery = 3 * time.Second

// Ready waits until objects are ready. Tell is called with what is waited for, and with what keeps its Pods. When ctx
// ends by its deadline, or waiting does not help, the error explains each object that is not ready. A request that
// fails is sent again.
func Ready(ctx context.Context, c *cluster.Client, ids []cluster.ID, tell func(string)) error {
	left := slices.Clone(ids)
	cause, looked := "", time.Now()
	for {
		var reasons []string
		failed := false
		still, err := unfinished(ctx, c, left, func(id cluster.ID, u *unstructured.Unstructured, err error) bool {
			state := State{Reason: "it is not there"}
			switch {
			case err != nil:
				state.Reason = err.Error()
			case u != nil:
				state = Of(u)
			}
			if !state.Ready {
				reasons, failed = append(reasons, id.String()+": "+state.Reason), failed || state.Failed
			}
			return state.Ready
		})
		if err != nil || len(still) == 0 {
			return err
		}
		left = still
		if failed || over(ctx) {
			return notReady(ctx, c, left)
		}
		if time.Since(looked) >= causeEvery {
			cause, looked = causeOf(ctx, c, left[0]), time.Now()
		}
		tell(reasons[0] + cause)
		if err := sleep(ctx); err != nil {
			return err
		}
	}
}

// unfinished reads objects and returns those that are not done, and all that were not read before the time to wait has
// ended. Done gets an object, nil if there is none, or the error of its request. An error of unfinished ends the wait.
func unfinished(ctx context.Context, c *cluster.Client, ids []cluster.ID, done func(cluster.ID, *unstructured.Unstructured, error) bool) (
	[]cluster.ID, error) {
	var left []cluster.ID
	for _, id := range ids {
		u, err := c.Get(ctx, id)
		switch {
		case over(ctx):
			left = append(left, id)
		case fatal(ctx, err):
			return nil, err
		case !done(id, u, err):
			left = append(left, id)
		}
	}
	return left, nil
}

// fatal says whether an error of a request ends the wait: an API server that is away for a moment, as while it is
// upgraded, does not.
func fatal(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err))
}

// over says whether the time to wait has ended.
func over(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// sleep waits for the next look. Its error is only that of a cancelled context.
func sleep(ctx context.Context) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		if !over(ctx) {
			return ctx.Err()
		}
	}
	return nil
}

// explainTime bounds how long an explanation takes after the time to wait has ended.
const explainTime = 10 * time.Second

func notReady(ctx context.Context, c *cluster.Client, ids []cluster.ID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTime)
	defer cancel()
	var all []error
	for _, id := range ids[:min(len(ids), maxNamed)] {
		all = append(all, errors.New(Explain(ctx, c, id)))
	}
	if more := len(ids) - maxNamed; more > 0 {
		all = append(all, fmt.Errorf("and %d more are not ready", more))
	}
	return errors.Join(all...)
}

// Gone waits until objects are gone. When ctx ends by its deadline, the error names what is left, with its finalizers.
func Gone(ctx context.Context, c *cluster.Client, ids []cluster.ID, tell func(string)) error {
	left := slices.Clone(ids)
	for {
		still, err := unfinished(ctx, c, left, func(_ cluster.ID, u *unstructured.Unstructured, err error) bool {
			return err == nil && (u == nil || u.GetDeletionTimestamp() == nil)
		})
		if err != nil || len(still) == 0 {
			return err
		}
		left = still
		if over(ctx) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTime)
			defer cancel()
			return stuck(ctx, c, left)
		}
		tell(left[0].String() + " is being deleted")
		if err := sleep(ctx); err != nil {
			return err
		}
	}
}

// stuck names objects whose deletion does not end, and the finalizers that hold them up.
func stuck(ctx context.Context, c *cluster.Client, ids []cluster.ID) error {
	var all []error
	for _, id := range ids[:min(len(ids), maxNamed)] {
		u, err := c.Get(ctx, id)
		if err != nil {
			all = append(all, err)
			continue
		}
		if u == nil {
			continue
		}
		inside := within(ctx, c, u)
		if len(inside) == 0 {
			all = append(all, held(u))
		}
		for i := range inside[:min(len(inside), maxNamed)] {
			all = append(all, fmt.Errorf("%s is not gone: %w", id, held(&inside[i])))
		}
	}
	return errors.Join(all...)
}

// kubernetes are the finalizers that Kubernetes removes by itself.
var kubernetes = []string{"customresourcecleanup.apiextensions.k8s.io", "foregroundDeletion", "orphan", "kubernetes",
	"kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"}

// held says which finalizers hold up the deletion of an object.
func held(u *unstructured.Unstructured) error {
	id := cluster.Of(u)
	if lists.All(u.GetFinalizers(), func(name string) bool { return slices.Contains(kubernetes, name) }) {
		return fmt.Errorf("%s is still being deleted; run this again, or raise --timeout", id)
	}
	return fmt.Errorf("%s is not deleted while it has the finalizer %s; start the controller that removes it, or remove it yourself: "+
		"kubectl patch %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
		id, strings.Join(u.GetFinalizers(), ", "), id.Command())
}

// within finds the objects with finalizers that hold up the deletion of a namespace, or of a CustomResourceDefinition.
func within(ctx context.Context, c *cluster.Client, u *unstructured.Unstructured) []unstructured.Unstructured {
	var kinds []cluster.ID
	switch id := cluster.Of(u); {
	case id.IsNamespace():
		all, err := c.NamespacedKinds()
		if err != nil {
			return nil
		}
		for _, kind := range all {
			kind.Namespace = id.Name
			kinds = append(kinds, kind)
		}
	case id.IsCRD():
		kinds = append(kinds, Defines(u))
	}
	var all []unstructured.Unstructured
	for _, kind := range kinds {
		list, err := c.List(ctx, kind, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, item := range list {
			if item.GetDeletionTimestamp() != nil && len(item.GetFinalizers()) > 0 {
				all = append(all, item)
			}
		}
	}
	return all
}

// Defines returns the kind that a CustomResourceDefinition defines.
func Defines(u *unstructured.Unstructured) cluster.ID {
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
	return cluster.ID{Group: group, Kind: kind}
}
