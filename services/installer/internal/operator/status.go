package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// maxMessage bounds a message in a status, in bytes.
const maxMessage = 8 << 10

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
}

// write writes a status, unless the resource has it.
func (r *reconciler) write(ctx context.Context, it *resource, s status) error {
	s.Message, s.Generation = short(s.Message), it.GetGeneration()
	for name, c := range s.Components {
		c.Error = short(c.Error)
		s.Components[name] = c
	}
	r.note(it.key(), seen{Revision: r.revision(it), Status: s.Status, Message: s.Message})
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
	return nil
}

// short cuts a text that is too long for a status.
func short(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	text = text[:maxMessage]
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
