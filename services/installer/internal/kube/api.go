package kube

import (
	"errors"
	"net/http"

	"k8s.io/client-go/discovery"
	admissionv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	autoscalingv2 "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// API is the part of client-go's kubernetes.Interface that commands use. Its whole clientset would be a sixth of the
// program, which counts in the memory of each command.
type API interface {
	AdmissionregistrationV1() admissionv1.AdmissionregistrationV1Interface
	AppsV1() appsv1.AppsV1Interface
	AuthorizationV1() authorizationv1.AuthorizationV1Interface
	AutoscalingV2() autoscalingv2.AutoscalingV2Interface
	CoreV1() corev1.CoreV1Interface
	Discovery() discovery.DiscoveryInterface
}

// clients implements API.
type clients struct {
	admission     *admissionv1.AdmissionregistrationV1Client
	apps          *appsv1.AppsV1Client
	authorization *authorizationv1.AuthorizationV1Client
	autoscaling   *autoscalingv2.AutoscalingV2Client
	core          *corev1.CoreV1Client
	discovery     *discovery.DiscoveryClient
}

// NewAPI makes clients of one API server, which share their connections. It sends nothing.
func NewAPI(config *rest.Config) (API, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	var c clients
	return &c, errors.Join(
		set(&c.admission, admissionv1.NewForConfigAndClient, config, client), set(&c.apps, appsv1.NewForConfigAndClient, config, client),
		set(&c.authorization, authorizationv1.NewForConfigAndClient, config, client),
		set(&c.autoscaling, autoscalingv2.NewForConfigAndClient, config, client),
		set(&c.core, corev1.NewForConfigAndClient, config, client),
		set(&c.discovery, discovery.NewDiscoveryClientForConfigAndClient, config, client),
	)
}

func set[C any](to *C, make func(*rest.Config, *http.Client) (C, error), config *rest.Config, client *http.Client) (err error) {
	*to, err = make(config, client)
	return err
}

// AdmissionregistrationV1 and the other methods implement API.
func (c *clients) AdmissionregistrationV1() admissionv1.AdmissionregistrationV1Interface {
	return c.admission
}

// AppsV1 implements API.
func (c *clients) AppsV1() appsv1.AppsV1Interface { return c.apps }

// AuthorizationV1 implements API.
func (c *clients) AuthorizationV1() authorizationv1.AuthorizationV1Interface { return c.authorization }

// AutoscalingV2 implements API.
func (c *clients) AutoscalingV2() autoscalingv2.AutoscalingV2Interface { return c.autoscaling }

// CoreV1 implements API.
func (c *clients) CoreV1() corev1.CoreV1Interface { return c.core }

// Discovery implements API.
func (c *clients) Discovery() discovery.DiscoveryInterface { return c.discovery }
