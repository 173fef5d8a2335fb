package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// Statuses of a resource and of its components, those of Istio's InstallStatus.
const (
	Healthy     = "HEALTHY"
	Reconciling = "RECONCILING"
	Failed      = "ERROR"
)

var statuses = []string{Healthy, Reconciling, Failed}

// maxMessage bounds a message in a status, in bytes, and maxEvent one in an event, of which the API server takes 1 KiB.
const maxMessage, maxEvent = 8 << 10, 1000

// component is the status of one component.
type component struct {
	Status  string `json:"status"`
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

// status is the field status of an IstioOperator.
type status struct {
	Status     string               `json:"status"`
	Message    string               `json:"message,omitempty"`
	Components map[string]component `json:"componentStatus,omitempty"`
	// Generation is the one of the resource that this is said of.
	Generation int64 `json:"observedGeneration,omitempty"`
	// Conditions have the same for tools that wait for conditions: Ready.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// conditionReady is true if everything is installed and ready. Its reason is Healthy, Reconciling or Error.
const conditionReady = "Ready"

// reasons are those of the condition, and of events, by status.
var reasons = map[string]string{Healthy: "Healthy", Reconciling: "Reconciling", Failed: "Error"}

// condition is Ready, with the time of before's if nothing but its message has changed.
func (s *status) condition(before *metav1.Condition, now time.Time) metav1.Condition {
	c := metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, ObservedGeneration: s.Generation, Reason: reasons[s.Status], Message: s.Message,
		LastTransitionTime: metav1.NewTime(now.UTC().Truncate(time.Second)),
	}
	if s.Status == Healthy {
		c.Status = metav1.ConditionTrue
		c.Message = cmp.Or(c.Message, "everything is installed and ready")
	}
	if before != nil && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c
}

// write writes a status, unless the resource has it.
func (r *reconciler) write(ctx context.Context, it *resource, s status) error {
	s.Message, s.Generation = short(s.Message), it.GetGeneration()
	for name, c := range s.Components {
		c.Error = short(c.Error)
		s.Components[name] = c
	}
	r.note(it.key(), seen{Revision: r.revision(it), Status: s.Status, Message: s.Message})
	before := it.status()
	s.Conditions = []metav1.Condition{s.condition(meta.FindStatusCondition(before.Conditions, conditionReady), r.Clock.Now())}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		return err
	}
	if has, err := json.Marshal(it.Object["status"]); err == nil {
		var have map[string]any
		if json.Unmarshal(has, &have) == nil && reflect.DeepEqual(have, want) {
			return nil
		}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status", "value": want}})
	if err != nil {
		return err
	}
	live, err := r.api(it).Patch(ctx, it.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of %s: %w", it, err)
	}
	it.Object["status"] = want
	it.SetResourceVersion(live.GetResourceVersion())
	if s.Status != before.Status || s.Status == Failed && s.Message != before.Message {
		r.event(ctx, it, s)
	}
	return nil
}

// status is what the resource's status says; what cannot be read is left out.
func (r *resource) status() (s status) {
	if text, err := json.Marshal(r.Object["status"]); err == nil {
		_ = json.Unmarshal(text, &s)
	}
	return s
}

// events is what the API server calls events.
var events = corev1.SchemeGroupVersion.WithResource("events")

// event tells of a new status. An event that is not taken is logged: it must not stop what is applied.
func (r *reconciler) event(ctx context.Context, it *resource, s status) {
	kind := corev1.EventTypeNormal
	if s.Status == Failed {
		kind = corev1.EventTypeWarning
	}
	now := metav1.NewTime(r.Clock.Now())
	text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: it.GetName() + ".", Namespace: it.GetNamespace()},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: it.GetAPIVersion(), Kind: it.GetKind(), Namespace: it.GetNamespace(), Name: it.GetName(), UID: it.GetUID(),
			ResourceVersion: it.GetResourceVersion(),
		},
		Reason: reasons[s.Status], Message: shortTo(s.Conditions[0].Message, maxEvent), Type: kind, Count: 1, FirstTimestamp: now,
		LastTimestamp: now,
		Source:        corev1.EventSource{Component: fieldManager}, ReportingController: fieldManager,
	})
	if err == nil {
		_, err = r.client.Dynamic().Resource(events).Namespace(it.GetNamespace()).Create(ctx, &unstructured.Unstructured{Object: text},
			metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Debug("an event was not written", "resource", it.String(), "error", err)
	}
}

// short cuts a text that is too long for a status.
func short(text string) string { return shortTo(text, maxMessage) }

func shortTo(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "…"
}

// title is the name of a component in a status, as Istio writes it: "IngressGateways" of
// "ingressGateways[istio-ingressgateway]".
func title(label string) string {
	label, _, _ = strings.Cut(label, "[")
	if label == "" {
		return ""
	}
	return strings.ToUpper(label[:1]) + label[1:]
}

// worse returns the worse of two component statuses, with the errors of both.
func worse(a, b component) component {
	order := []string{"", Healthy, Reconciling, Failed}
	out := a
	if slices.Index(order, b.Status) > slices.Index(order, a.Status) {
		out = b
	}
	out.Error = strings.Trim(a.Error+"\n"+b.Error, "\n")
	if out.Version == "" {
		out.Version = a.Version + b.Version
	}
	return out
}

// health looks at the workloads of an installation.
func (r *reconciler) health(ctx context.Context, rec *inventory.Record) (status, error) {
	s := status{Status: Healthy, Components: map[string]component{}}
	for _, e := range rec.Objects {
		name := title(e.Component)
		if name == "" || e.IsNamespace() {
			continue
		}
		c := component{Status: Healthy, Version: rec.Package}
		if wait.Waits(e.ID) && !e.IsCRD() {
			live, err := r.client.Get(ctx, e.ID)
			if err != nil {
				return s, err
			}
			switch {
			case live == nil:
				c.Status, c.Error = Failed, e.String()+" is not there"
			case !wait.Of(live).Ready:
				if c.Status = Reconciling; wait.Of(live).Failed || out(live) {
					c.Status = Failed
				}
				c.Error = wait.Explain(ctx, r.client, e.ID)
			}
		}
		s.Components[name] = worse(s.Components[name], c)
	}
	r.finish(&s)
	return s, nil
}

// out says whether a workload that should have Pods has none that is available.
func out(u *unstructured.Unstructured) bool {
	number := func(field string) int64 {
		n, _, _ := unstructured.NestedInt64(u.Object, "status", field)
		return n
	}
	return u.GetKind() != "Job" && number("availableReplicas")+number("numberAvailable") == 0
}

// finish makes the status of the whole from those of the components, and adds the components that only speak of
// others: Pilot, of Fairlead's own package.
func (r *reconciler) finish(s *status) {
	var errs []string
	for _, name := range slices.Sorted(maps.Keys(s.Components)) {
		c := s.Components[name]
		if c.Error != "" {
			errs = append(errs, name+": "+c.Error)
		}
		s.Status = worse(component{Status: s.Status}, c).Status
	}
	for i := range r.pkg.Components {
		one := &r.pkg.Components[i]
		c, installed := s.Components[title(one.Name)]
		if one.Under == "" || !installed {
			continue
		}
		over := title(one.Under)
		s.Components[over] = worse(s.Components[over], c)
	}
	if s.Message == "" {
		s.Message = strings.Join(errs, "\n")
	}
}

// tellEvery is the time between two statuses that say what is waited for.
const tellEvery = time.Second

// progress writes how far a change is into the status. It implements apply.Progress.
type progress struct {
	r    *reconciler
	ctx  context.Context
	it   *resource
	s    status
	last time.Time
	// at is the component that is being applied.
	at string
}

func (r *reconciler) progress(ctx context.Context, it *resource, components []string, version string) *progress {
	p := &progress{r: r, ctx: ctx, it: it, s: status{Status: Reconciling, Components: map[string]component{}}}
	for _, label := range components {
		p.s.Components[title(label)] = component{Status: Reconciling, Version: version}
	}
	return p
}

// Step implements apply.Progress.
func (p *progress) Step(label string, done, total int, now string) {
	p.at = label
	p.s.Message = fmt.Sprintf("%s, %d of %d: %s", label, done, total, now)
	if time := p.r.Clock.Now(); time.Sub(p.last) >= tellEvery {
		p.last = time
		p.write()
	}
}

// Done implements apply.Progress.
func (p *progress) Done(label, summary string) {
	p.at = ""
	if c, ok := p.s.Components[title(label)]; ok {
		c.Status = Healthy
		p.s.Components[title(label)] = c
	}
	p.s.Message = label + ": " + summary
}

// failed is the status after an error.
func (p *progress) failed(err error) status {
	s := p.s
	s.Status, s.Message = Failed, err.Error()
	if c, ok := s.Components[title(p.at)]; ok {
		c.Status, c.Error = Failed, err.Error()
		s.Components[title(p.at)] = c
	}
	return s
}

// write leaves an error to the end: a status that cannot be written must not stop what is applied.
func (p *progress) write() {
	s := p.s
	s.Components = map[string]component{}
	for name, c := range p.s.Components {
		s.Components[name] = c
	}
	if err := p.r.write(p.ctx, p.it, s); err != nil && p.ctx.Err() == nil {
		p.r.Log.Debug("a status was not written", "error", err)
	}
}
