package registration

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Annotations of registered WorkloadEntries: Istio's.
const (
	groupAnnotation        = "istio.io/autoRegistrationGroup"
	controllerAnnotation   = "istio.io/workloadController"
	connectedAnnotation    = "istio.io/connectedAt"
	disconnectedAnnotation = "istio.io/disconnectedAt"
	// probedAnnotation makes an entry follow the health that its agent tells, see package health.
	probedAnnotation = "proxy.istio.io/health-checks-enabled"
)

// Kinds of objects.
const (
	groupKind = "WorkloadGroup"
	entryKind = "WorkloadEntry"
)

// Entry is a WorkloadEntry to be created.
type Entry struct {
	Key                 object.Key
	Labels, Annotations map[string]string
	Spec                *networking.WorkloadEntry
	// Group is the WorkloadGroup that owns the entry.
	Group *object.Object
}

// entry is the WorkloadEntry of a claim. All of it is the group's, except for the address, the network, and whether the
// agent probes: labels that a proxy claims are not read.
func (c *claim) entry(controller string, now time.Time) Entry {
	group := c.group.Body.(*networking.WorkloadGroup)
	spec := &networking.WorkloadEntry{}
	if group.GetTemplate() != nil {
		spec = proto.Clone(group.GetTemplate()).(*networking.WorkloadEntry)
	}
	spec.Address, spec.Network = c.address, c.network
	labels := map[string]string{}
	maps.Copy(labels, spec.GetLabels())
	maps.Copy(labels, group.GetMetadata().GetLabels())
	if len(labels) > 0 {
		spec.Labels = labels
	}
	annotations := map[string]string{}
	maps.Copy(annotations, group.GetMetadata().GetAnnotations())
	if c.probed {
		annotations[probedAnnotation] = "true"
	}
	maps.Copy(annotations, connected(c.group.Key.Name, controller, now))
	delete(annotations, disconnectedAnnotation)
	return Entry{Key: c.key, Labels: maps.Clone(labels), Annotations: annotations, Spec: spec, Group: c.group}
}

// connected are the annotations of an entry whose proxy is connected; an empty value removes one.
func connected(group, controller string, now time.Time) map[string]string {
	return map[string]string{
		groupAnnotation: group, controllerAnnotation: controller, connectedAnnotation: now.UTC().Format(time.RFC3339Nano),
		disconnectedAnnotation: "",
	}
}

// disconnected are the annotations of an entry whose proxy has gone.
func disconnected(now time.Time) map[string]string {
	return map[string]string{connectedAnnotation: "", disconnectedAnnotation: now.UTC().Format(time.RFC3339Nano)}
}
