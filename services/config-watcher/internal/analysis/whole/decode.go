package whole

import (
	"encoding/json"

	security "istio.io/api/security/v1beta1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Groups of the kinds that only analysis reads.
const (
	groupApps      = "apps"
	groupBatch     = "batch"
	groupAdmission = "admissionregistration.k8s.io"
	groupCRD       = "apiextensions.k8s.io"
	groupGateway   = "gateway.networking.k8s.io"
)

// kindOf is a key without names.
func kindOf(k object.Key) object.Key { return object.Key{Group: k.Group, Kind: k.Kind} }

// template is a kind that makes Pods.
type template struct {
	corev1.PodTemplateSpec
	// refused is what the API server says of Pods that it refuses to make; empty if it makes them, or for a kind whose
	// status does not tell.
	refused string
}

// decoders decode the kinds of which the checks read more than config-watcher keeps.
var decoders = map[object.Key]func(tree map[string]any) (any, error){
	{Kind: "Pod"}:       typed[corev1.Pod],
	{Kind: "ConfigMap"}: typed[corev1.ConfigMap],
	{Group: groupApps, Kind: "Deployment"}: func(tree map[string]any) (any, error) {
		d, err := into[appsv1.Deployment](tree)
		t := &template{PodTemplateSpec: d.Spec.Template}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				t.refused = c.Message
			}
		}
		return t, err
	},
	{Group: groupApps, Kind: "StatefulSet"}: func(tree map[string]any) (any, error) {
		d, err := into[appsv1.StatefulSet](tree)
		return &template{PodTemplateSpec: d.Spec.Template}, err
	},
	{Group: groupApps, Kind: "DaemonSet"}: func(tree map[string]any) (any, error) {
		d, err := into[appsv1.DaemonSet](tree)
		return &template{PodTemplateSpec: d.Spec.Template}, err
	},
	{Group: groupBatch, Kind: "Job"}: func(tree map[string]any) (any, error) {
		d, err := into[batchv1.Job](tree)
		return &template{PodTemplateSpec: d.Spec.Template}, err
	},
	{Group: groupBatch, Kind: "CronJob"}: func(tree map[string]any) (any, error) {
		d, err := into[batchv1.CronJob](tree)
		return &template{PodTemplateSpec: d.Spec.JobTemplate.Spec.Template}, err
	},
	{Group: groupAdmission, Kind: "MutatingWebhookConfiguration"}:   typed[admissionv1.MutatingWebhookConfiguration],
	{Group: groupAdmission, Kind: "ValidatingWebhookConfiguration"}: typed[admissionv1.ValidatingWebhookConfiguration],
	{Group: groupCRD, Kind: "CustomResourceDefinition"}:             typed[metav1.PartialObjectMetadata],
	{Group: groupGateway, Kind: "Gateway"}:                          typed[metav1.PartialObjectMetadata],
	{Group: kinds.GroupSecurity, Kind: "RequestAuthentication"}: func(tree map[string]any) (any, error) {
		out := &security.RequestAuthentication{}
		return out, specInto(tree, out)
	},
	{Group: kinds.GroupSecurity, Kind: "AuthorizationPolicy"}: func(tree map[string]any) (any, error) {
		out := &security.AuthorizationPolicy{}
		return out, specInto(tree, out)
	},
}

// clusterKinds are the kinds of decoders that have no namespace.
var clusterKinds = map[object.Key]bool{
	{Group: groupAdmission, Kind: "MutatingWebhookConfiguration"}:   true,
	{Group: groupAdmission, Kind: "ValidatingWebhookConfiguration"}: true,
	{Group: groupCRD, Kind: "CustomResourceDefinition"}:             true,
}

func typed[T any](tree map[string]any) (any, error) { return into[T](tree) }

// specInto decodes the spec of an Istio kind.
func specInto(tree map[string]any, out json.Unmarshaler) error {
	text, err := json.Marshal(tree["spec"])
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}
