package validate

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// ExportTo returns an object's own exportTo: the field, or the annotation of a Service.
func ExportTo(o *object.Object) []string {
	switch b := o.Body.(type) {
	case *corev1.Service:
		if v := o.Annotations[ExportToAnnotation]; v != "" {
			return strings.Split(v, ",")
		}
	case *networking.ServiceEntry:
		return b.ExportTo
	case *networking.VirtualService:
		return b.ExportTo
	case *networking.DestinationRule:
		return b.ExportTo
	}
	return nil
}
