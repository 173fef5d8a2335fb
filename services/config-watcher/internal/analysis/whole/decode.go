package whole

import (
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
	{Group: groupApps, Kind: "StatefulSet"}: templateOf(func(s *appsv1.StatefulSet) corev1.PodTemplateSpec { return s.Spec.Template }),
	{Group: groupApps, Kind: "DaemonSet"}:   templateOf(func(s *appsv1.DaemonSet) corev1.PodTemplateSpec { return s.Spec.Template }),
	{Group: groupBatch, Kind: "Job"}:        templateOf(func(j *batchv1.Job) corev1.PodTemplateSpec { return j.Spec.Template }),
	{Group: groupBatch, Kind: "CronJob"}: templateOf(func(j *batchv1.CronJob) corev1.PodTemplateSpec {
		return j.Spec.JobTemplate.Spec.Template
	}),
	{Group: groupAdmission, Kind: "MutatingWebhookConfiguration"}:   typed[admissionv1.MutatingWebhookConfiguration],
	{Group: groupAdmission, Kind: "ValidatingWebhookConfiguration"}: typed[admissionv1.ValidatingWebhookConfiguration],
	{Group: groupCRD, Kind: "CustomResourceDefinition"}:             typed[metav1.PartialObjectMetadata],
	{Group: groupGateway, Kind: "Gateway"}:                          typed[metav1.PartialObjectMetadata],
	{Group: kinds.GroupSecurity, Kind: "RequestAuthentication"}:     specOf[security.RequestAuthentication],
	{Group: kinds.GroupSecurity, Kind: "AuthorizationPolicy"}:       specOf[security.AuthorizationPolicy],
}

// clusterKinds are the kinds of decoders that have no namespace.
var clusterKinds = map[object.Key]bool{
	{Group: groupAdmission, Kind: "MutatingWebhookConfiguration"}:   true,
	{Group: groupAdmission, Kind: "ValidatingWebhookConfiguration"}: true,
	{Group: groupCRD, Kind: "CustomResourceDefinition"}:             true,
}

func typed[T any](tree map[string]any) (any, error) { return into[T](tree) }

// templateOf decodes a kind whose template of Pods of gives.
func templateOf[T any](of func(*T) corev1.PodTemplateSpec) func(tree map[string]any) (any, error) {
	return func(tree map[string]any) (any, error) {
		o, err := into[T](tree)
		return &template{PodTemplateSpec: of(o)}, err
	}
}

// specOf decodes the spec of an Istio kind.
func specOf[T any](tree map[string]any) (any, error) { return into[T](tree["spec"]) }
