package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

const (
	// maxTold bounds the problems and the warnings of one answer; a client shows each on a line.
	maxTold = 20
	// maxWarningBytes is what the API server passes on of a warning.
	maxWarningBytes = 256
	// generated stands for what the API server appends to the generateName of an object, of which it takes maxPrefix
	// bytes.
	generated, maxPrefix = "xxxxx", 58
)

// decide gives the verdict on one request. Only objects of the mesh's kinds are checked; Kubernetes has checked its
// own. An object whose content does not change is never denied: its finalizers, owners and status must remain writable,
// however old and wrong the rest is. One that is being deleted may still take a new content, and is checked as any. Of
// the Gateway API, the API server has checked the schemas and the rules.
func (h *Handler) decide(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	allowed := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	create := request.Operation == admissionv1.Create
	if !create && request.Operation != admissionv1.Update || request.SubResource != "" {
		return allowed
	}
	check := validate.Document
	switch {
	case request.Kind.Group == kinds.GroupGatewayAPI:
		check = validate.Served // the API server has the definitions, maybe newer ones
	case !kinds.OwnGroup(request.Kind.Group):
		return allowed
	}
	docs, problems := manifest.Parse("", request.Object.Raw)
	if len(docs) != 1 {
		if len(problems) == 0 {
			problems = object.Problems{{Reason: fmt.Sprintf("expected one object, found %d", len(docs))}}
		}
		return deny(request, problems)
	}
	doc := docs[0]
	meta, _ := doc.Tree["metadata"].(map[string]any)
	if prefix, _ := meta["generateName"].(string); prefix != "" && meta["name"] == nil {
		meta["name"] = prefix[:min(len(prefix), maxPrefix)] + generated
	}
	o, err := check(doc)
	kept := !create && sameContent(doc.Tree, request.OldObject.Raw)
	if err == nil {
		allowed.Warnings = warnings(o.Warnings)
		if kept {
			return allowed
		}
		if problem, confined := h.confined(o); confined {
			return deny(request, object.Problems{problem})
		}
		// What others ask about is not on its way to the API server, as little as a dry run.
		real := webhook.CallerOf(ctx).APIServer && (request.DryRun == nil || !*request.DryRun)
		if over := h.cfg.Quota.Check(real, o); len(over) > 0 {
			return deny(request, over)
		}
		return allowed
	}
	if kept {
		allowed.Warnings = []string{object.Cut("this object is not valid, and its last valid version stays in force: "+oneLine(err),
			maxWarningBytes-3)}
		return allowed
	}
	if errors.Is(err, validate.ErrIgnored) {
		return allowed
	}
	if !errors.As(err, &problems) {
		problems = object.Problems{{Reason: err.Error()}}
	}
	return deny(request, problems)
}

// confined tells what is wrong with an object that is exported beyond its namespace against the tenancy.
func (h *Handler) confined(o *object.Object) (object.Problem, bool) {
	if !h.cfg.Tenancy.Enabled || len(object.ExportTo(o)) == 0 || !normalise.LeavesNamespace(o, meshdefaults.MeshConfig()) {
		return object.Problem{}, false
	}
	why := h.cfg.Tenancy.Confined(o, h.cfg.Root())
	return object.Problem{
		Object: o.Key.String(), Field: "spec.exportTo", Value: strings.Join(object.ExportTo(o), ","),
		Reason: "the mesh has tenants, and " + why + ": it may have effects in its own namespace alone",
		Remedy: "write exportTo: [\".\"], or have an administrator put it into the root namespace",
	}, why != ""
}

// sameContent reports whether an update leaves spec, labels and annotations as they are.
func sameContent(tree map[string]any, old []byte) bool {
	var before map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(old, &before); err != nil {
		return false
	}
	meta := func(t map[string]any, name string) any {
		m, _ := t["metadata"].(map[string]any)
		return m[name]
	}
	return reflect.DeepEqual(tree["spec"], before["spec"]) && reflect.DeepEqual(meta(tree, "labels"), meta(before, "labels")) &&
		reflect.DeepEqual(meta(tree, "annotations"), meta(before, "annotations"))
}

// deny tells each problem with its field, in words and as causes.
func deny(request *admissionv1.AdmissionRequest, problems object.Problems) *admissionv1.AdmissionResponse {
	var lines []string
	var causes []metav1.StatusCause
	for i, p := range problems {
		if i == maxTold {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-maxTold))
			break
		}
		lines = append(lines, text(p))
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: p.Field, Message: p.Description()})
	}
	return &admissionv1.AdmissionResponse{UID: request.UID, Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: strings.Join(lines, "\n"),
		Details: &metav1.StatusDetails{Group: request.Kind.Group, Kind: request.Kind.Kind, Name: request.Name, Causes: causes},
	}}
}

// warnings are what kubectl prints.
func warnings(problems object.Problems) []string {
	var out []string
	for i, p := range problems {
		if i == maxTold {
			return append(out, fmt.Sprintf("and %d more", len(problems)-maxTold))
		}
		out = append(out, object.Cut(text(p), maxWarningBytes-3))
	}
	return out
}

// text is a problem without its location, which an object in the API server has not got.
func text(p object.Problem) string {
	p.Location = ""
	return p.Error()
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
