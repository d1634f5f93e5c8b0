//! Examples with hooks in other languages, by the steps of their READMEs. The very files of the
//! hooks run; the tests write statuses in place of kubelets and other controllers.

mod blue_green;
mod configmap_propagation;
mod crd_roles;
mod indexed_job;
mod ordered_pods;
mod service_per_pod;
mod tenant;
