package offer

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/status"
)

const (
	kindMesh = "XMesh"
	// meshName is the XMesh that is created, and meshController that of XMeshes which are this mesh.
	meshName, meshController = "fairlead", "fairlead.dev/mesh-controller"
	// maxMeshes bounds the XMeshes that are looked at; there is a use for one.
	maxMeshes = 100
)

// meshes creates the XMesh, and writes the status of all that are this mesh.
func (o *Offer) meshes(ctx context.Context) error {
	list, err := o.client.Resource(meshResource).List(ctx, metav1.ListOptions{Limit: maxMeshes})
	if err != nil {
		return err
	}
	found := false
	for i := range list.Items {
		found = found || list.Items[i].GetName() == meshName
	}
	if !found {
		err := o.create(ctx, meshResource, kindMesh, meshName, map[string]any{
			"controllerName": meshController, "description": "The mesh of Fairlead's sidecars",
		})
		if err != nil {
			return err
		}
		if list, err = o.client.Resource(meshResource).List(ctx, metav1.ListOptions{Limit: maxMeshes}); err != nil {
			return err
		}
	}
	for i := range list.Items {
		if err := o.meshStatus(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// meshStatus writes the status of an XMesh if it is to be this mesh's and is another.
func (o *Offer) meshStatus(ctx context.Context, u *unstructured.Unstructured) error {
	controller, _, _ := unstructured.NestedString(u.Object, "spec", "controllerName")
	if controller != meshController || !o.cfg.Writes(u.GetLabels()) {
		return nil
	}
	accepted := metav1.Condition{
		Type: string(gatewayv1.GatewayClassConditionStatusAccepted), Status: metav1.ConditionTrue, ObservedGeneration: u.GetGeneration(),
		Reason: string(gatewayv1.GatewayClassReasonAccepted), Message: "it is this mesh",
	}
	if parameters, _, _ := unstructured.NestedMap(u.Object, "spec", "parametersRef"); parameters != nil {
		accepted.Status, accepted.Reason = metav1.ConditionFalse, string(gatewayv1.GatewayClassReasonInvalidParameters)
		accepted.Message = "spec.parametersRef is not supported; remove it: the mesh has its settings from MeshConfig"
	}
	// A GatewayClass has a status of the same fields.
	now := &status.Status{Generation: u.GetGeneration(), API: &status.API{
		Class: &gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{accepted}, SupportedFeatures: gatewayapi.MeshFeatures}}}
	before, _, _ := unstructured.NestedMap(u.Object, "status")
	if _, changed := status.Merge(before, now, o.cfg.Clock.Now()); !changed {
		return nil
	}
	_, err := o.cfg.Writer.Write(ctx, status.Target{
		Key: object.Key{Group: meshResource.Group, Kind: kindMesh, Name: u.GetName()}, APIVersion: u.GetAPIVersion(), UID: string(u.GetUID()),
		Generation: u.GetGeneration(),
	}, now)
	if errors.Is(err, status.ErrGone) || errors.Is(err, status.ErrOutdated) {
		return nil // the next look sees it
	}
	return err
}
