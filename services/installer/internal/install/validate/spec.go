// Package validate judges a merged spec: its fields against the types of IstioOperatorSpec, which hold Kubernetes' own,
// its values against their schema, and what depends on several fields.
package validate

import (
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"fairlead.dev/services/installer/internal/install/overlay"
)

// Spec is the IstioOperatorSpec.
type Spec struct {
	Profile              string                     `json:"profile,omitempty"`
	InstallPackagePath   any                        `json:"installPackagePath,omitempty"`
	Hub                  string                     `json:"hub,omitempty"`
	Tag                  any                        `json:"tag,omitempty"`
	Namespace            string                     `json:"namespace,omitempty"`
	Revision             string                     `json:"revision,omitempty"`
	CompatibilityVersion string                     `json:"compatibilityVersion,omitempty"`
	MeshConfig           json.RawMessage            `json:"meshConfig,omitempty"`
	Components           map[string]json.RawMessage `json:"components,omitempty"`
	Values               json.RawMessage            `json:"values,omitempty"`
	UnvalidatedValues    json.RawMessage            `json:"unvalidatedValues,omitempty"`
}

// Component is a part of spec.components.
type Component struct {
	Enabled   *bool              `json:"enabled,omitempty"`
	Namespace string             `json:"namespace,omitempty"`
	Hub       string             `json:"hub,omitempty"`
	Tag       any                `json:"tag,omitempty"`
	Variant   string             `json:"variant,omitempty"`
	Name      string             `json:"name,omitempty"`
	Label     map[string]string  `json:"label,omitempty"`
	K8s       KubernetesSettings `json:"k8s,omitempty"`
}

// KubernetesSettings are a component's Kubernetes settings, which patchOf in package render lays on objects. Tests
// compare with the fields here what render knows, what migrate writes, and what warnings about deprecated values name.
type KubernetesSettings struct {
	Affinity                  *corev1.Affinity                           `json:"affinity,omitempty"`
	Env                       []*corev1.EnvVar                           `json:"env,omitempty"`
	HPASpec                   *autoscalingv2.HorizontalPodAutoscalerSpec `json:"hpaSpec,omitempty"`
	ImagePullPolicy           string                                     `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets          []*corev1.LocalObjectReference             `json:"imagePullSecrets,omitempty"`
	NodeSelector              map[string]string                          `json:"nodeSelector,omitempty"`
	Overlays                  []overlay.Overlay                          `json:"overlays,omitempty"`
	PodAnnotations            map[string]string                          `json:"podAnnotations,omitempty"`
	PodDisruptionBudget       *policyv1.PodDisruptionBudgetSpec          `json:"podDisruptionBudget,omitempty"`
	PodLabels                 map[string]string                          `json:"podLabels,omitempty"`
	PodSecurityContext        *corev1.PodSecurityContext                 `json:"podSecurityContext,omitempty"`
	PriorityClassName         string                                     `json:"priorityClassName,omitempty"`
	ReadinessProbe            *corev1.Probe                              `json:"readinessProbe,omitempty"`
	ReplicaCount              uint32                                     `json:"replicaCount,omitempty"`
	Resources                 *corev1.ResourceRequirements               `json:"resources,omitempty"`
	SecurityContext           *corev1.PodSecurityContext                 `json:"securityContext,omitempty"`
	Service                   *corev1.ServiceSpec                        `json:"service,omitempty"`
	ServiceAnnotations        map[string]string                          `json:"serviceAnnotations,omitempty"`
	Strategy                  *appsv1.DeploymentStrategy                 `json:"strategy,omitempty"`
	Tolerations               []*corev1.Toleration                       `json:"tolerations,omitempty"`
	TopologySpreadConstraints []*corev1.TopologySpreadConstraint         `json:"topologySpreadConstraints,omitempty"`
	VolumeMounts              []*corev1.VolumeMount                      `json:"volumeMounts,omitempty"`
	Volumes                   []*corev1.Volume                           `json:"volumes,omitempty"`
}
