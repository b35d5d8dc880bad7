use burn::tensor::{Tensor, TensorData, Device, activation};
use softly::parameter::*;
use std::time::Instant;
fn main(){
 let dev = Device::flex(); let ad = dev.clone().autodiff();
 let n=128usize; let h=128usize;
 let r=|n:usize| (0..n).map(|i| ((i*7919%1000) as f32/1000.0-0.5)*0.2).collect::<Vec<f32>>();
 let w1=Parameter::new(r(h*2),[2,h],&ad); let w2=Parameter::new(r(h*h),[h,h],&ad); let w3=Parameter::new(r(h*2),[h,2],&ad);
 let s1=Parameter::new(r(8*h),[8,h],&ad); let e1=Parameter::new(r(8*h),[8,h],&ad);
 let s2=Parameter::new(r(8*h),[8,h],&ad); let e2=Parameter::new(r(8*h),[8,h],&ad);
 let b1=Parameter::new(r(h),[1,h],&ad);let b2=Parameter::new(r(h),[1,h],&ad);
 let x:Tensor<2>=Tensor::from_data(TensorData::new(r(n*2),[n,2]),&dev);
 let e:Tensor<2>=Tensor::from_data(TensorData::new(r(n*8),[n,8]),&dev);
 let f=||{
  let l=|x:Tensor<2>,w:&Parameter<2>,b:&Parameter<2>,s:&Parameter<2>,t:&Parameter<2>| {
    let y=x.matmul(w.get())+b.get();
    activation::silu(y.clone()*(e.clone().matmul(s.get())+1.0)+e.clone().matmul(t.get())) };
  let y=l(x.clone(),&w1,&b1,&s1,&e1); let y=l(y,&w2,&b2,&s2,&e2); let y=y.matmul(w3.get());
  (y-x.clone()).powi_scalar(2).sum() };
 for _ in 0..50{ f().backward(); }
 let t=Instant::now(); let k=500; for _ in 0..k{ let _=f(); } println!("fwd {:?}",t.elapsed()/k);
 let t=Instant::now(); for _ in 0..k{ let mut g=f().backward(); let _=w2.take_gradient(&mut g); } println!("fwd+bwd {:?}",t.elapsed()/k);
 let a:Tensor<2>=Tensor::from_data(TensorData::new(r(n),[n,1]),&dev); 
 let t=Instant::now(); for _ in 0..10000{ let _=a.clone()+1.0; } println!("tiny op {:?}",t.elapsed()/10000);
 let aa=a.clone().autodiff().require_grad();
 let t=Instant::now(); for _ in 0..10000{ let _=aa.clone()+1.0; } println!("tiny op ad {:?}",t.elapsed()/10000);
 let t=Instant::now(); for _ in 0..1000{ let mut z=aa.clone(); for _ in 0..20 {z=z*1.01;} let g=z.sum().backward(); } println!("20 tiny op ad + backward {:?}",t.elapsed()/1000);
 // f64
 let d:Tensor<2>=Tensor::from_data(TensorData::new(vec![1.0f64/3.0;4],[2,2]),(&dev,burn::tensor::DType::F64));
 println!("{:?} {}", d.dtype(), (d.clone()*d.clone()).into_data());
}
