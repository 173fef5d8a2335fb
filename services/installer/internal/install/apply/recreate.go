package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// Some fields of an object cannot be changed once it is there: the selector of a Deployment, the clusterIP of a
// Service, the roleRef of a binding. The object is then deleted and made anew, if the user says so.

// clusterIP is the field of a Service that an API server keeps, and refuses nothing, when an installation no longer
// states it.
const clusterIP = "spec.clusterIP"

// staysHeadless reports whether a Service that an earlier installation made headless would stay so, where this one
// wants a Service with an address: API servers find no webhook behind a headless one whose target port differs.
func staysHeadless(ch *Change, after *unstructured.Unstructured) bool {
	if ch.Kind != "Service" || ch.Group != "" || ch.Action != Configure || !strings.Contains(cluster.OwnedFields(ch.Live), `"f:clusterIP":`) {
		return false
	}
	_, said, _ := unstructured.NestedString(ch.want.Object, "spec", "clusterIP")
	external, _, _ := unstructured.NestedString(ch.want.Object, "spec", "type")
	of, _, _ := unstructured.NestedString(after.Object, "spec", "clusterIP")
	return !said && external != "ExternalName" && of == "None"
}

// maxAnew bounds what the name of an object that is tried has of the object's own.
const maxAnew = 50

// cannotChange takes an API server's refusal of a change as that of fields that cannot be changed, where the object
// could be made by another name: then ch is to be made anew. Otherwise it returns the refusal.
func (l *comparison) cannotChange(ctx context.Context, ch *Change, refusal error) error {
	status := apierrors.APIStatus(nil)
	if ch.Action != Configure || !apierrors.IsInvalid(refusal) || !errors.As(refusal, &status) {
		return refusal
	}
	other := ch.want.DeepCopy()
	other.SetName(strings.TrimRight(ch.Name[:min(len(ch.Name), maxAnew)], "-.") + "-anew")
	if l.client.Try(ctx, other) != nil {
		return refusal // it is wrong in itself
	}
	if ch.IsNamespace() || ch.IsCRD() || ch.Kind == "PersistentVolumeClaim" {
		return fmt.Errorf("%w; it is not made anew, because what is in it would be lost: give it the value that it has, or another name", refusal)
	}
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			if !slices.Contains(ch.Fields, cause.Field) {
				ch.Fields = append(ch.Fields, cause.Field)
			}
		}
	}
	ch.Action, ch.After = Recreate, ch.want
	return nil
}

// Anew are the changes that delete an object and make it anew.
func (p *Plan) Anew() (out []*Change) {
	for _, ch := range p.Changes {
		if ch.Action == Recreate {
			out = append(out, ch)
		}
	}
	return out
}

// Why says why an object is made anew.
func (ch *Change) Why() string {
	return fmt.Sprintf("%s cannot be changed while it is there", strings.Join(ch.Fields, ", "))
}

// MayRecreate fails if objects are to be made anew, and nobody has asked for that.
func (p *Plan) MayRecreate(o Options) error {
	anew := p.Anew()
	if o.Recreate || len(anew) == 0 {
		return nil
	}
	var lines, commands []string
	for _, ch := range anew[:min(len(anew), maxErrors)] {
		lines = append(lines, fmt.Sprintf("%s: %s", ch.ID, ch.Why()))
		commands = append(commands, "kubectl delete "+ch.Command())
	}
	if more := len(anew) - maxErrors; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("nothing was changed: %d objects cannot be changed as they are, and have to be made anew:\n%s\nfairlead install, "+
		"upgrade and rollback delete them and make them anew with --recreate, which interrupts what they do; an operator makes them when they "+
		"are deleted: %s",
		len(anew), strings.Join(lines, "\n"), strings.Join(commands, "; "))
}
