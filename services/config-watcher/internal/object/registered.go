package object

// Registered is what a registry beside Kubernetes, such as Consul, says of a ServiceEntry or WorkloadEntry that its
// source has made and that no field of these kinds can say. It is part of no manifest, so no user can write it.
type Registered struct {
	// Service is the name of the ServiceEntry that a WorkloadEntry belongs to, or of the ServiceEntry itself. It alone
	// selects these WorkloadEntries, and no others: whoever may register in the registry chooses their labels.
	Service string
	// Aliases of a ServiceEntry are further names of its first host, in lower case.
	Aliases []string
	// Joins is the hostname of the Service, in the same namespace, that gets the endpoints as well; "" for none.
	Joins string
	// Account is the service account, of the same namespace, that all endpoints of a ServiceEntry prove to be; "" if
	// they prove nothing.
	Account string
	// Share is how much of the traffic of that Service the endpoints get, 0 to 100 percent.
	Share uint32
}
