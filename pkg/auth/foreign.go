package auth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clusterkeys"
)

// ClusterError says why a token is refused that a key of a further cluster has signed.
type ClusterError struct {
	// Cluster is the name of that cluster.
	Cluster string
	// ID is the identity that the token would prove; zero if its claims name none.
	ID  spiffeid.ID
	Err error
}

// Error implements error.
func (e *ClusterError) Error() string { return fmt.Sprintf("remote cluster %s: %v", e.Cluster, e.Err) }

// Unwrap implements errors.Unwrap.
func (e *ClusterError) Unwrap() error { return e.Err }

// verifyForeign decides about a token that a further cluster has signed. Its errors are ClusterErrors.
func (j *JWT) verifyForeign(c *claims, of *foreign) (Peer, error) {
	id, err := of.identity(c)
	if err == nil {
		err = j.verifyClaims(&c.Claims, of.Issuer)
	}
	if err == nil {
		err = j.allowed(of, id)
	}
	if err != nil {
		return Peer{}, &ClusterError{Cluster: of.Name, ID: id, Err: err}
	}
	return Peer{ID: id, Method: MethodJWT, Token: c.token(), Cluster: of.Name}, nil
}

// identity is what a token claims.
func (of *foreign) identity(c *claims) (spiffeid.ID, error) {
	if of.OfNomad() {
		return c.identity(of)
	}
	return identity(of.td, c.Subject)
}

// nomadClaims are those of a workload identity of Nomad that say whose it is. The subject says it too, but joined by
// colons, which names may have.
type nomadClaims struct {
	Namespace string `json:"nomad_namespace"`
	// Job is the parent's, for a job that was made of a periodic or parametrised one.
	Job  string `json:"nomad_job_id"`
	Task string `json:"nomad_task"`
}

// identity is the one that the cluster's rules give the task.
func (c *nomadClaims) identity(of *foreign) (spiffeid.ID, error) {
	if c.Namespace == "" || c.Job == "" || c.Task == "" {
		return spiffeid.ID{}, errors.New("token names no namespace, job and task of Nomad; ask for it in block identity of a task, not of a " +
			"service")
	}
	namespace, account, ok := of.Account(c.Namespace, c.Job, c.Task)
	if !ok {
		return spiffeid.ID{}, fmt.Errorf("no rule is about task %.80q of job %.80q in Nomad's namespace %.80q; add one to %s of its ConfigMap",
			c.Task, c.Job, c.Namespace, clusterkeys.NomadKey)
	}
	return WorkloadID(of.td, namespace, account)
}

// CheckCluster returns why a further cluster may not have an identity now, nil if it may. Who has a certificate that
// was issued for a token of the cluster is asked about with it, because what the cluster may have can change. Its
// errors are ClusterErrors.
func (j *JWT) CheckCluster(name string, id spiffeid.ID) error {
	keys, err := j.keys.get(false)
	if err != nil {
		return &ClusterError{Cluster: name, ID: id, Err: fmt.Errorf("the server has no verification keys")}
	}
	of, ok := keys.clusters[name]
	if !ok {
		return &ClusterError{Cluster: name, ID: id, Err: fmt.Errorf("its tokens are not trusted any more; " +
			"`fairlead remote-clusters trust` has them trusted")}
	}
	if err := j.allowed(of, id); err != nil {
		return &ClusterError{Cluster: name, ID: id, Err: err}
	}
	return nil
}

// allowed returns why a cluster may not have an identity.
func (j *JWT) allowed(of *foreign, id spiffeid.ID) error {
	namespace, account, ok := WorkloadOf(id)
	switch {
	case !ok:
		return fmt.Errorf("%s is no service account", id)
	case of.td != j.cfg.TrustDomain:
		return of.domainError(j.cfg.TrustDomain)
	case id.TrustDomain() != of.td:
		return fmt.Errorf("%s is of another trust domain than %s, in which its identities are", id, of.td.IDString())
	case j.cfg.Reserved(namespace, account):
		return fmt.Errorf("service account %s/%s is of the mesh's own services, or of their namespaces, whose identities no other cluster has; "+
			"run the workload in another namespace", namespace, account)
	case !of.Allows(namespace):
		return fmt.Errorf("namespace %s is not one of those whose identities it may have (%s); add it with `fairlead remote-clusters trust "+
			"--namespaces`, or run the workload in one of these", namespace, told(of.Namespaces))
	case !of.Grants(namespace, account):
		return fmt.Errorf("no rule gives a task of Nomad service account %s/%s; add one to %s of its ConfigMap", namespace, account,
			clusterkeys.NomadKey)
	}
	return nil
}

// domainError says why no token of a cluster counts whose entry names another trust domain than the mesh's.
func (of *foreign) domainError(mesh spiffeid.TrustDomain) error {
	return fmt.Errorf("field %s: %s is not the mesh's, %s, the only one in which there are identities; remove the field",
		clusterkeys.TrustDomainKey, of.td.Name(), mesh.Name())
}

// maxTold is how many namespaces an error names.
const maxTold = 10

func told(names []string) string {
	if more := len(names) - maxTold; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxTold], ", "), more)
	}
	return strings.Join(names, ", ")
}
